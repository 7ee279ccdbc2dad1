"""Encoded media in a cache, as backends keep them: one row for all layers and heads.

Axis suffixes: L lanes, B blocks, N rows of a lane, M rows that are stored, D entries of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_registry.cache import CacheSpec


def row_bytes_of(spec: CacheSpec) -> int:
    """Bytes of one row."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return spec.key_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class MediaPages:
    """A cache of kind "media"."""

    cache_LBND: Tensor

    @classmethod
    def of(cls, pages: Tensor, spec: CacheSpec) -> MediaPages:
        """See uint8 pages [lanes, blocks, bytes] as rows."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return cls(pages.view(dtype).unflatten(2, (-1, spec.key_dim)))

    def at(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lane, block and place of slots that are numbered by block, then lane by lane."""
        lanes, _, lane_rows, _ = self.cache_LBND.shape
        places, within = slots // lane_rows, slots % lane_rows
        return places % lanes, places // lanes, within

    def store(self, rows_MD: Tensor, slots_M: Tensor) -> None:
        """Write rows at these slots."""
        self.cache_LBND.index_put_(self.at(slots_M), rows_MD.to(self.cache_LBND.dtype))


__all__ = ["MediaPages", "row_bytes_of"]
