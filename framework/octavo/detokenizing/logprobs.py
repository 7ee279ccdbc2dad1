"""Log probabilities of the engine to those of the caller, with each token's text."""

from __future__ import annotations

from octavo.messages import SequenceLogprobs
from octavo.model_folder.token_bytes import byte_level, fallback_byte
from octavo.outputs import Logprob, TokenLogprobs
from octavo_registry.tokenizer import Tokenizer


class LogprobDecoder:
    """Gives tokens their text, and remembers it: the likeliest tokens are mostly the same ones."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, tuple[str | None, bytes | None]] = {}
        # Decoded behind a letter, a token keeps the space that it would lose at a text's start.
        self._anchor: list[int] = []
        self._anchor_chars = 0
        if tokenizer is not None:
            self._anchor = tokenizer.encode("a", add_special_tokens=False)
            self._anchor_chars = len(tokenizer.decode(self._anchor, skip_special_tokens=False))

    def decode(self, logprobs: SequenceLogprobs) -> TokenLogprobs:
        """The chosen token first, then the likeliest by rank."""
        ids, values = logprobs.token_ids, logprobs.logprobs
        decoded = {ids[0]: Logprob(values[0], logprobs.rank, *self._text(ids[0]))}
        for rank in range(1, len(ids)):
            if ids[rank] != ids[0]:
                decoded[ids[rank]] = Logprob(values[rank], rank, *self._text(ids[rank]))
        return decoded

    def _text(self, token: int) -> tuple[str | None, bytes | None]:
        """A token's text, and its bytes where these are no whole characters."""
        if self._tokenizer is None:
            return None, None
        if token not in self._texts:
            text = self._tokenizer.decode([*self._anchor, token], skip_special_tokens=False)
            text = text[self._anchor_chars :]
            self._texts[token] = text, self._part(token) if "\ufffd" in text else None
        return self._texts[token]

    def _part(self, token: int) -> bytes | None:
        assert self._tokenizer is not None
        (spelling,) = self._tokenizer.convert_ids_to_tokens([token])
        if spelling is None:
            return None
        if token in self._tokenizer.byte_fallback_ids:
            return fallback_byte(spelling)
        return byte_level(spelling)
