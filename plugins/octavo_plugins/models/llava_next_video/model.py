"""LLaVA-NeXT-Video: frames' patches are pooled before they are projected.

Axis suffixes: N tiles or frames, P patches, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch.nn.functional as F
from torch import Tensor

from octavo.errors import ModelError
from octavo_plugins.models.llava_next.model import LlavaNext
from octavo_registry.model import ModelSpec

POOLS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "average": F.avg_pool2d,
    "max": F.max_pool2d,
}


class LlavaNextVideo(LlavaNext):
    """LlavaNextVideoForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        mode = spec.config.get("spatial_pool_mode", "average")
        if mode not in POOLS:
            raise ModelError(f"spatial_pool_mode={mode!r} is none of {', '.join(POOLS)}")
        self._pool = POOLS[mode]
        self._stride: int = spec.config.get("spatial_pool_stride", 2)

    def rows_of(self, item: Mapping[str, Tensor], features_NPD: Tensor) -> Tensor:
        """Rows of an image, or of all frames one behind the other."""
        if "layout" in item:
            return super().rows_of(item, features_NPD)
        side = self.tower.side
        pooled = self._pool(features_NPD.mT.unflatten(2, (side, side)), self._stride)
        rows_NPD: Tensor = self.projector(pooled.flatten(2).mT)
        return rows_NPD.flatten(0, 1)

    def encode_bytes(self, num_rows: int) -> int:
        """Some patches of a frame become one row."""
        return max(2, self._stride**2) * num_rows * self.tower.bytes_per_patch
