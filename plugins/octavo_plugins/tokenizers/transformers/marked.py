"""A fast tokenizer under which control tokens have other names, which no text can have."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer

_UNKNOWN: Final = "\U0010fffe"
"""A character that vocabularies lack."""


class MarkedEncoder:
    """Shares the model of a fast tokenizer; ``controls`` are the texts that are renamed."""

    def __init__(self, fast: Tokenizer, controls: frozenset[str]) -> None:
        self._renamed = Tokenizer(fast.model)
        if fast.normalizer is not None:
            self._renamed.normalizer = fast.normalizer
        if fast.pre_tokenizer is not None:
            self._renamed.pre_tokenizer = fast.pre_tokenizer
        secret = secrets.token_hex(8)
        added = sorted(fast.get_added_tokens_decoder().items())
        self._names = {
            token.content: f"<{secret}{number}>"
            for number, token in added
            if token.content in controls
        }
        tokens = [_named(token, self._names.get(token.content)) for _, token in added]
        self._renamed.add_tokens(tokens)
        ids = [self._renamed.token_to_id(token.content) for token in tokens]
        self._ids = {own: number for own, (number, _) in zip(ids, added, strict=True)}
        """Its own of an added token to the tokenizer's."""
        self._named = {self._renamed.token_to_id(name) for name in self._names.values()}
        unknown = self._renamed.encode(_UNKNOWN, add_special_tokens=False).ids
        self._controls = {number for number, token in added if token.content in controls}
        self._controls.difference_update(unknown)

    def encode(self, text: str, marked: Sequence[tuple[int, int]]) -> list[int] | None:
        """Ids of the text; None where its model makes control tokens of plain text."""
        marked = [place for place in marked if text[slice(*place)] in self._names]
        named, starts = self._with_names(text, marked)
        found = self._renamed.encode(named, add_special_tokens=False)
        seen = {
            bisect_right(starts, end - 1) - 1
            for number, (_, end) in zip(found.ids, found.offsets, strict=True)
            if number in self._named
        }
        if len(seen) < len(marked):  # as of tokens that want a blank before them
            named, _ = self._with_names(text, [marked[place] for place in sorted(seen)])
            found = self._renamed.encode(named, add_special_tokens=False)
        if not self._controls.isdisjoint(id for id in found.ids if id not in self._ids):
            return None
        return [self._ids.get(number, number) for number in found.ids]

    def _with_names(self, text: str, marked: Sequence[tuple[int, int]]) -> tuple[str, list[int]]:
        """The text with names at these places, and where they begin in it."""
        pieces: list[str] = []
        starts: list[int] = []
        end = length = 0
        for start, behind in marked:
            name = self._names[text[start:behind]]
            starts.append(length + start - end)
            length = starts[-1] + len(name)
            pieces += text[end:start], name
            end = behind
        return "".join((*pieces, text[end:])), starts


def _named(token: AddedToken, name: str | None) -> AddedToken:
    return AddedToken(
        name or token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
