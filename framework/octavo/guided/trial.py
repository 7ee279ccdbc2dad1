"""A guide is tried before it is served: some steps of a text, and the memory that it takes."""

from __future__ import annotations

import ctypes
import random
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_registry.guided import GuideState

WALKS: Final = 2
STEPS: Final = 4
"""Steps of each walk. What a mask costs is known after a few: libraries are lazy."""


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
    mask_W = np.zeros((vocab_size + 31) // 32, np.int32)
    for _ in range(WALKS):
        num_taken = 0
        while num_taken < STEPS and not state.is_finished():
            state.fill_bitmask(mask_W)
            if not mask_W.any() or not state.accept(_some_token(mask_W, chance)):
                break
            if state.is_complete():
                state.rollback(1)  # most of a text is before its end: try another token once
                if not state.accept(_some_token(mask_W, chance)):
                    break
            num_taken += 1
        state.rollback(num_taken)


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
