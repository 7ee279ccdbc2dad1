"""The matrices of a packed adapter.

Axis suffixes: R the adapter's rank at a linear, I its inputs, O its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.messages import AdapterHead, PackedAdapter


def matrices(packed: PackedAdapter) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each linear's name, down [R, I], and up [R, O] with the scaling in it."""
    dtype: torch.dtype = getattr(torch, packed.head.dtype)
    yield from _views(packed.head, torch.frombuffer(packed.data, dtype=dtype))


def _views(head: AdapterHead, data: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    first = 0
    for name, (rank, inputs, outputs) in head.shapes.items():
        middle, end = first + rank * inputs, first + rank * (inputs + outputs)
        yield name, data[first:middle].view(rank, inputs), data[middle:end].view(rank, outputs)
        first = end
