"""Main memory that is taken when it is first written."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor


def untouched_zeros(shape: tuple[int, ...]) -> Tensor:
    """Zeros in main memory, which the system provides page by page when they are first written.

    ``torch.zeros`` writes them: a pool would take all its bytes at once, whatever is used of it.
    """
    num_bytes = math.prod(shape)
    if num_bytes == 0:
        return torch.zeros(shape, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(shape)
