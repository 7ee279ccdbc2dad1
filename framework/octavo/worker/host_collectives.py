"""Collectives of ranks on one host's CPUs, through memory that they share.

Each has a slot for what it gives, in two turns: who begins an exchange has seen that all others had
begun the one before it, and so had read what stood in the slot two exchanges ago.
"""

from __future__ import annotations

import mmap
import threading
import time
from typing import Final

import numpy as np
import torch
from torch import Tensor

CONTROL_BYTES: Final = 4096
SLOT_BYTES: Final = 2**20
LINE_WORDS: Final = 8
"""A cache line, so that each rank writes to one of its own."""
SPINS: Final = 200
NAP_SECONDS: Final = 50e-6


class RankAbortedError(RuntimeError):
    """Another rank has raised, and would never come to the exchange."""


def shared_bytes(size: int) -> int:
    """What so many ranks share."""
    return CONTROL_BYTES + 2 * size * SLOT_BYTES


class HostCollectives:
    """Sums in a fixed order, so that all ranks have the same bits."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int) -> None:
        self._rank = rank
        words = np.frombuffer(memory, np.int64, CONTROL_BYTES // 8)
        self._aborted = words[:1]
        self._counts = words[LINE_WORDS : LINE_WORDS * (1 + size) : LINE_WORDS]
        """Exchanges that each rank has begun."""
        octets = torch.frombuffer(memory, dtype=torch.uint8, offset=CONTROL_BYTES)
        self._slots = octets[: 2 * size * SLOT_BYTES].view(2, size, SLOT_BYTES)
        self._fence = threading.Lock()

    @property
    def num_begun(self) -> int:
        """Exchanges that all ranks together have begun."""
        return int(self._counts.sum())

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, in float32 and a tree of the ranks' order."""
        sums = torch.empty(x.numel(), dtype=x.dtype)
        for start, given in self._pieces(x):
            parts = [part.float() for part in self._exchange(given)]
            while len(parts) > 1:
                pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
                parts = [*pairs, *parts[len(parts) - len(parts) % 2 :]]
            sums[start : start + len(given)] = parts[0].to(x.dtype)
        return sums.view(x.shape)

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x side by side along the last axis."""
        gathered = torch.empty(len(self._counts), x.numel(), dtype=x.dtype)
        for start, given in self._pieces(x):
            for row, part in zip(gathered, self._exchange(given), strict=True):
                row[start : start + len(given)] = part
        return torch.cat([row.view(x.shape) for row in gathered], dim=-1)

    def abort(self) -> None:
        """Let whoever waits, or comes to wait, raise."""
        self._aborted[0] = 1

    def reset(self) -> None:
        """Begin anew; no rank is in a step."""
        self._counts[self._rank] = 0
        self._aborted[0] = 0

    def _pieces(self, x: Tensor) -> list[tuple[int, Tensor]]:
        flat = x.reshape(-1)
        most = SLOT_BYTES // x.element_size()
        return [(start, flat[start : start + most]) for start in range(0, len(flat), most)]

    def _exchange(self, given: Tensor) -> list[Tensor]:
        """What all ranks give, valid until the exchange after the next begins."""
        count = int(self._counts[self._rank])
        slots = self._slots[count % 2]
        num_bytes = given.numel() * given.element_size()
        slots[self._rank, :num_bytes] = given.view(torch.uint8)
        with self._fence:  # what was written is seen before the count
            self._counts[self._rank] = count + 1
        spins = 0
        while self._counts.min() <= count:
            if self._aborted[0]:
                raise RankAbortedError("another rank has raised in this step")
            spins += 1
            time.sleep(0 if spins < SPINS else NAP_SECONDS)
        with self._fence:
            return [slot[:num_bytes].view(given.dtype) for slot in slots]
