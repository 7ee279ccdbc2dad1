"""The layout inside a block, and which positions of a step's rows are where.

Axis suffixes: P slots (one token's key and value each), N rows of a batch, Q queries of a row,
C cached positions of a row, K key/value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's cache as one array of slots; consecutive blocks are one run of it."""

    slots_P2KD: Tensor
    """Key and value of each slot side by side."""
    block_stride: int
    """Slots from one block to the next: more than a block's tokens where other layers, which share
    the pool, have larger pages."""

    @classmethod
    def of(cls, pages: Tensor, spec: CacheSpec) -> Pages:
        """See uint8 pages [blocks, page_bytes], whose blocks may lie further apart, as slots."""
        dtype = getattr(torch, spec.dtype)
        slot_bytes = slot_bytes_of(spec)
        num_blocks, block_bytes = pages.shape[0], pages.stride(0)
        if block_bytes % slot_bytes:
            raise PluginError(
                f"attention backend 'torch': blocks {block_bytes} bytes apart do not hold a whole "
                f"number of slots of {slot_bytes} bytes ({spec}); use another attention backend"
            )
        lane = pages.as_strided((num_blocks * block_bytes,), (1,))
        shape = (-1, 2, spec.kv_heads, spec.key_dim)
        return cls(lane.view(dtype).view(shape), block_bytes // slot_bytes)


def slot_bytes_of(spec: CacheSpec) -> int:
    """Bytes of one token's key and value."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return 2 * spec.kv_heads * spec.key_dim * dtype.itemsize


def to_device(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """The array on the device, without waiting for what the device is doing."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def slots_at(table_NB: Tensor, positions_NC: Tensor, block_tokens: int, stride: int) -> Tensor:
    """The slots of positions, by each row's block table; int64."""
    blocks_NC = table_NB.gather(1, positions_NC // block_tokens).long()
    return blocks_NC * stride + positions_NC % block_tokens
