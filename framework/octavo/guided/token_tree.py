"""A vocabulary in the order of its bytes: what begins alike is tried together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

from octavo_registry.guided import GuideVocabulary

_Place = TypeVar("_Place")


class TokenTree:
    """All tokens that are texts; those that end a text are not among them."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        stops = frozenset(vocabulary.stop_token_ids)
        pairs = sorted(
            (data, token)
            for token, data in enumerate(vocabulary.token_bytes[: vocabulary.vocab_size])
            if data and token not in stops
        )
        self._data = [data for data, _ in pairs]
        self._tokens = [token for _, token in pairs]

    def allowed(self, start: _Place, walk: Callable[[_Place, bytes], _Place | None]) -> list[int]:
        """The tokens whose bytes ``walk`` leads somewhere from the start."""
        found: list[int] = []
        before, path = b"", [start]  # the token before, and the places behind its bytes
        number = 0
        while number < len(self._data):
            data = self._data[number]
            del path[_num_alike(before, data) + 1 :]
            while len(path) <= len(data):
                place = walk(path[-1], data[len(path) - 1 : len(path)])
                if place is None:
                    break
                path.append(place)
            before = data[: len(path) - 1]
            if len(path) > len(data):
                found.append(self._tokens[number])
                number += 1
            else:
                number = self._behind(data[: len(path)], number)
        return found

    def _behind(self, prefix: bytes, number: int) -> int:
        """The first token from there on that does not begin so."""
        head = prefix.rstrip(b"\xff")
        if not head:
            return len(self._data)
        return bisect_left(self._data, head[:-1] + bytes([head[-1] + 1]), number)


def _num_alike(first: bytes, second: bytes) -> int:
    """How many bytes they begin with in common."""
    num = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        num += 1
    return num
