"""The one copy to the device that a step needs, and the one copy back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Staging:
    """Pinned host buffers used in turn, so that a copy under way is not overwritten.

    On a CPU the buffer is used in place.
    """

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device = device
        self._pinned = [torch.empty(0, dtype=torch.int32)] * (depth + 1)
        self._nothing = torch.empty(0, dtype=torch.int32, device=device)
        self._next = 0

    def send(self, buffer: NDArray[np.int32]) -> Tensor:
        """Return the buffer's words on the device, valid in stream order."""
        words = torch.from_numpy(buffer)
        if self._device.type != "cuda":
            return words
        if len(buffer) == 0:
            return self._nothing
        turn = self._next
        self._next = (turn + 1) % len(self._pinned)
        if self._pinned[turn].numel() < words.numel():
            self._pinned[turn] = torch.empty(2 * words.numel(), dtype=torch.int32, pin_memory=True)
        pinned = self._pinned[turn][: words.numel()]
        pinned.copy_(words)
        return pinned.to(self._device, non_blocking=True)
