"""A guide is tried before it is served: some steps of a text, and the memory that it takes."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_registry.guided import GuideState, GuideVocabulary

WALKS: Final = 2
STEPS: Final = 4
"""Steps of each walk. What a mask costs is known after a few: libraries are lazy."""
FAR_STEPS: Final = 8
MOST_TRIED: Final = 16
"""Tokens out of which each of these takes one."""


def has_tokens(state: GuideState, vocab_size: int) -> bool:
    """Whether any token may come first, for which the state makes a mask."""
    mask_W = np.zeros((vocab_size + 31) // 32, np.int32)
    state.fill_bitmask(mask_W)
    state.forced()
    return bool(mask_W.any())


def walk(state: GuideState, vocab_size: int) -> None:
    """Take steps that the masks allow, and take them back; raises what a request would meet.

    One state for all: others would give a backend a fresh start.
    """
    chance = random.Random(0)
    for _ in range(WALKS):
        _take(state, vocab_size, STEPS, lambda mask_W: _some_tokens(mask_W, chance, 2))


def walk_far(state: GuideState, vocabulary: GuideVocabulary) -> None:
    """Walk longer through a part that may be too much, the second time by tokens that lead far."""
    chance = random.Random(0)
    lengths = [len(each or b"") for each in vocabulary.token_bytes]

    def long_tokens(mask_W: NDArray[np.int32]) -> list[int]:
        return sorted(_some_tokens(mask_W, chance, MOST_TRIED), key=lambda token: -lengths[token])

    size = vocabulary.vocab_size
    _take(state, size, FAR_STEPS, lambda mask_W: _some_tokens(mask_W, chance, MOST_TRIED))
    _take(state, size, FAR_STEPS, long_tokens)


def _take(
    state: GuideState,
    vocab_size: int,
    num_steps: int,
    tokens_of: Callable[[NDArray[np.int32]], list[int]],
) -> None:
    mask_W = np.zeros((vocab_size + 31) // 32, np.int32)
    num_taken = 0
    while num_taken < num_steps and not state.is_finished():
        state.fill_bitmask(mask_W)
        if not mask_W.any() or not _advance(state, tokens_of(mask_W)):
            break
        num_taken += 1
    state.rollback(num_taken)


def _advance(state: GuideState, tokens: list[int]) -> bool:
    """Take the first behind which the text is not whole, for most of it is before its end."""
    for token in tokens[:-1]:
        if not state.accept(token):
            return False
        if not state.is_complete():
            return True
        state.rollback(1)
    return state.accept(tokens[-1])


def _some_tokens(mask_W: NDArray[np.int32], chance: random.Random, number: int) -> list[int]:
    return [_some_token(mask_W, chance) for _ in range(number)]


def _some_token(mask_W: NDArray[np.int32], chance: random.Random) -> int:
    words = np.flatnonzero(mask_W)
    place = int(chance.choice(words))
    bits = int(mask_W.view(np.uint32)[place])
    return 32 * place + chance.choice([bit for bit in range(32) if bits >> bit & 1])


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


@cache
def _mallinfo() -> Any:
    found = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if found is not None:
        found.restype = _Heap
    return found


def heap_bytes() -> int:
    """What native code of this process has allocated; 0 where the C library does not tell."""
    mallinfo = _mallinfo()
    if mallinfo is None:
        return 0
    heap = mallinfo()
    return int(heap.uordblks + heap.hblkhd)
