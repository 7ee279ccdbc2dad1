"""Token ids to text as they come, never half a character."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_registry.tokenizer import Tokenizer

_KEPT_TOKENS = 6
"""Context that decoding goes on from. An unfinished character of UTF-8 takes at most 3 tokens."""
_WINDOW_TOKENS = 16
"""Window length at which it is cut to the kept tokens: 11 steps share the cost of the cut."""


class IncrementalDetokenizer:
    """One continuation's text; the pieces put together equal the decoding of all its ids at once.

    Only a window of the last tokens is decoded, so that a token costs the same at any length.
    Text that a later token may still change is held back: an unfinished character, and a run of
    byte-fallback tokens, which becomes text or replacement characters as a whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        keep_special_tokens: Sequence[str] = (),
        spaces_between_special_tokens: bool = True,
    ) -> None:
        """``prompt_ids`` is what the text goes on from: its last tokens decide on a first space.

        ``keep_special_tokens`` are not skipped, each the text of one token.
        """
        self._tokenizer = tokenizer
        # What is skipped never gets into the window: there nothing is left to skip.
        self._flags = (False, spaces_between_special_tokens)
        self._skipped: frozenset[int] = frozenset()
        if skip_special_tokens:
            kept = (
                tokenizer.encode(text, add_special_tokens=False) for text in keep_special_tokens
            )
            self._skipped = tokenizer.special_ids.difference(*kept)
        self._window = self._visible(prompt_ids[-_KEPT_TOKENS:])
        self._emitted = self._num_prompt_chars()

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is now final."""
        self._window += self._visible(ids)
        if not self._window or self._window[-1] in self._tokenizer.byte_fallback_ids:
            return ""
        text = self._decode()
        num_final = _num_final(text)
        piece = text[self._emitted : num_final]
        self._emitted = max(num_final, self._emitted)
        if len(self._window) > _WINDOW_TOKENS:
            self._cut_window()
        return piece

    def finish(self) -> str:
        """Return what was held back; an unfinished character is now a replacement character."""
        return self._decode()[self._emitted :]

    def _num_prompt_chars(self) -> int:
        text = self._decode()
        if not text.endswith("\ufffd"):
            return len(text)
        # The prompt ends within a character: it is ours to show once it is whole.
        kept = list(self._window)
        while kept and kept[-1] in self._tokenizer.byte_fallback_ids:
            kept.pop()
        if len(kept) == len(self._window):
            return len(text) - 1
        return len(self._tokenizer.decode(kept, *self._flags))

    def _visible(self, ids: Sequence[int]) -> list[int]:
        # Ids without text must not become the context: a tokenizer that drops the space at the
        # start of its text would drop it in the middle of ours.
        limit = self._tokenizer.vocab_size
        return [i for i in ids if i < limit and i not in self._skipped]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, *self._flags) if self._window else ""

    def _cut_window(self) -> None:
        whole = self._window
        self._window = whole[-_KEPT_TOKENS:]
        text = self._decode()
        if text:
            self._emitted = _num_final(text)
        else:
            self._window = whole


def _num_final(text: str) -> int:
    # However many bytes of an unfinished character there are, they decode to one replacement
    # character, and only the last can be it.
    return len(text) - text.endswith("\ufffd")
