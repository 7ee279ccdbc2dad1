"""The layout inside a block, and which positions of a step's rows are where.

Axis suffixes: P slots (one token's key and value each), N rows of a batch, Q queries of a row,
C cached positions of a row, K key/value heads, D head dim, S 2 for key and value or 1 for a key
that holds the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's cache as one array of slots; consecutive blocks are one run of it."""

    slots_PSKD: Tensor
    """Key and value of each slot side by side."""
    value_dim: int
    block_stride: int
    """Slots from one block to the next: more than a block's tokens where other layers, which share
    the pool, have larger pages."""
    block_tokens: int

    @classmethod
    def of(cls, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Pages:
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
        slots_PSKD = lane.view(dtype).view(-1, stored_of(spec), spec.kv_heads, spec.key_dim)
        return cls(slots_PSKD, spec.value_dim, block_bytes // slot_bytes, block_tokens)

    def places(self, slots_T: Tensor) -> Tensor:
        """Where slots that are numbered without gaps are here."""
        if self.block_stride == self.block_tokens:
            return slots_T
        return slots_T // self.block_tokens * self.block_stride + slots_T % self.block_tokens


def stored_of(spec: CacheSpec) -> int:
    """Tensors that a slot holds: key and value, or a key that holds the value."""
    return 1 if spec.kind == "latent" else 2


def slot_bytes_of(spec: CacheSpec) -> int:
    """Bytes of one token's key and value."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return stored_of(spec) * spec.kv_heads * spec.key_dim * dtype.itemsize


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, without waiting for what the device is doing."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def slots_at(table_NB: Tensor, positions_NC: Tensor, block_tokens: int, stride: int) -> Tensor:
    """The slots of positions, by each row's block table; int64."""
    blocks_NC = table_NB.gather(1, positions_NC // block_tokens).long()
    return blocks_NC * stride + positions_NC % block_tokens
