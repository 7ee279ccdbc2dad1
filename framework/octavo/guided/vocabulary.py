"""A tokenizer's vocabulary as guides need it: the bytes that each token adds to a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from octavo.errors import ModelError
from octavo.model_folder.token_bytes import byte_level, fallback_byte
from octavo_registry.guided import GuideVocabulary
from octavo_registry.tokenizer import Tokenizer

_PROBES = (
    ' {"name": "Zoë", "ids": [1, -2.5e3], "ok": true}\n\tend',
    " l'été — 東京 🙂 <b>&amp;</b>",
)

ENCODED_TEXTS = 4096
"""Kept: a backend that looks for tokens without a choice asks for the same texts on and on."""


def vocabulary_of(
    tokenizer: Tokenizer, *, vocab_size: int, stop_token_ids: Sequence[int]
) -> GuideVocabulary:
    """Read a plugin's tokenizer; ``vocab_size`` is the width of the logits.

    Raises where the bytes of its tokens cannot be told, rather than guide by wrong ones.
    """
    given: Any = getattr(tokenizer, "hf", None)
    if hasattr(given, "added_tokens_decoder"):
        return read_vocabulary(given, vocab_size=vocab_size, stop_token_ids=stop_token_ids)
    num_tokens = min(vocab_size, tokenizer.vocab_size)
    spellings = tokenizer.convert_ids_to_tokens(range(num_tokens))
    special = {
        spellings[token] or "": token for token in tokenizer.special_ids if token < num_tokens
    }
    return _read(tokenizer, spellings, {}, special, vocab_size, stop_token_ids)


def read_vocabulary(hf: Any, *, vocab_size: int, stop_token_ids: Sequence[int]) -> GuideVocabulary:
    """The vocabulary of a tokenizer of the transformers package."""
    added = hf.added_tokens_decoder
    num_tokens = min(vocab_size, max(len(hf), 1 + max(added, default=-1)))
    spellings: list[str | None] = hf.convert_ids_to_tokens(list(range(num_tokens)))
    texts = {token: each.content.encode() for token, each in added.items()}
    special = {each.content: token for token, each in added.items() if each.special}
    return _read(hf, spellings, texts, special, vocab_size, stop_token_ids)


def _read(
    tokenizer: Any,
    spellings: Sequence[str | None],
    texts: Mapping[int, bytes],
    special_ids: Mapping[str, int],
    vocab_size: int,
    stop_token_ids: Sequence[int],
) -> GuideVocabulary:
    """``texts`` are the bytes of tokens that are spelled as their text; others follow a rule."""
    special = {*special_ids.values(), *stop_token_ids}
    for read in (byte_level, _sentence_piece, _plain):
        found = [
            None if token in special else texts.get(token, read(spelling or ""))
            for token, spelling in enumerate(spellings)
        ]
        if all(_spells(tokenizer, found, probe) for probe in _PROBES):
            return GuideVocabulary(
                token_bytes=[each or None for each in found],
                special_ids=dict(special_ids),
                stop_token_ids=tuple(stop_token_ids),
                vocab_size=vocab_size,
                encode=_encoding_inside(tokenizer, found),
            )
    raise ModelError(
        f"{type(tokenizer).__name__}: its tokens are spelled neither as bytes nor as SentencePiece "
        "does, so that no guide can hold to them"
    )


def longest_tokens(token_bytes: Sequence[bytes | None]) -> Callable[[str], list[int]]:
    """An ``encode`` for where the tokenizer is not at hand: the longest token at each place."""
    ids = {each: token for token, each in enumerate(token_bytes) if each}
    most = max(map(len, ids), default=0)

    def encode(text: str) -> list[int]:
        data, place, found = text.encode(), 0, list[int]()
        while place < len(data):
            sizes = range(most, 0, -1)
            pieces = (data[place : place + size] for size in sizes)
            piece = next((piece for piece in pieces if piece in ids), None)
            if piece is None:
                break
            found.append(ids[piece])
            place += len(piece)
        return found

    return encode


def _encoding_inside(
    tokenizer: Any, token_bytes: Sequence[bytes | None]
) -> Callable[[str], list[int]]:
    """An ``encode`` for pieces of text that stand in a longer one.

    SentencePiece puts a blank before what it takes for a beginning, so text is put behind a line
    break, which is cut off again. What becomes special tokens is spelled by the longest ones.
    """
    before: list[int] = tokenizer.encode("\n", add_special_tokens=False)
    spelled = longest_tokens(token_bytes)

    @lru_cache(maxsize=ENCODED_TEXTS)
    def encoded(text: str) -> tuple[int, ...]:
        for prefix, begin in (("", []), ("\n", before)):
            ids: list[int] = tokenizer.encode(prefix + text, add_special_tokens=False)
            rest = ids[len(begin) :]
            known = all(token < len(token_bytes) for token in rest)
            joined = b"".join(token_bytes[token] or b"" for token in rest) if known else None
            if ids[: len(begin)] == begin and joined == text.encode():
                return tuple(rest)
        return tuple(spelled(text))

    return lambda text: list(encoded(text))


def _spells(tokenizer: Any, token_bytes: Sequence[bytes | None], text: str) -> bool:
    """Whether the tokens of a text are its bytes; some tokenizers put a blank before it."""
    ids: Collection[int] = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join((token_bytes[i] or b"") for i in ids if i < len(token_bytes))
    return joined.lstrip(b" ") == text.encode().lstrip(b" ")


def _plain(spelling: str) -> bytes:
    return spelling.encode()


def _sentence_piece(spelling: str) -> bytes | None:
    byte = fallback_byte(spelling)
    return byte if byte is not None else spelling.replace("\u2581", " ").encode()
