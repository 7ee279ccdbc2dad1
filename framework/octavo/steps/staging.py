"""How a step's words reach the device: in one copy, or where kernels read them on the host."""

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
        self._next = 0

    def pin(self, buffer: NDArray[np.int32]) -> Tensor:
        """Return the buffer's words on the host, where kernels can read them."""
        if self._device.type != "cuda":
            return torch.from_numpy(buffer)
        turn = self._next
        self._next = (turn + 1) % len(self._pinned)
        if len(self._pinned[turn]) < len(buffer):
            self._pinned[turn] = torch.empty(2 * len(buffer), dtype=torch.int32, pin_memory=True)
        pinned = self._pinned[turn][: len(buffer)]
        pinned.numpy()[:] = buffer
        return pinned

    def send(self, buffer: NDArray[np.int32]) -> Tensor:
        """Return the buffer's words on the device, valid in stream order."""
        return self.pin(buffer).to(self._device, non_blocking=True)
