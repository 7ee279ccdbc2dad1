"""LLaVA-OneVision: LLaVA-NeXT's tiles, pooled where they are many, and frames pooled always.

Axis suffixes: N tiles or frames, P patches, D hidden, R rows and C columns of patches.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_plugins.models.llava_next.model import LlavaNext
from octavo_plugins.models.llava_onevision.inputs import pooled
from octavo_registry.model import ModelSpec


class LlavaOnevision(LlavaNext):
    """LlavaOnevisionForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, layer=-1, strategy="full")
        self._config = spec.config

    def rows_of(self, item: Mapping[str, Tensor], features_NPD: Tensor) -> Tensor:
        """Rows of an image, or of a video, which has one end alone."""
        rows_NPD = self.projector(features_NPD)
        side = self.tower.side
        if "layout" not in item:
            half = -(-side // 2)
            frames_NPD = _resized(rows_NPD.unflatten(1, (side, side)), (half, half)).flatten(0, 2)
            return torch.cat([frames_NPD, self.newline.weight[None]])
        picture_RCD = self.picture(item, rows_NPD[1:])
        size = (picture_RCD.shape[0], picture_RCD.shape[1])
        smaller = pooled(size, side, self._config)
        if smaller != size:
            picture_RCD = _resized(picture_RCD[None], smaller)[0]
        return torch.cat([rows_NPD[0], self.lines(picture_RCD)])

    def encode_bytes(self, num_rows: int) -> int:
        """Four patches of a frame become one row."""
        return 4 * num_rows * self.tower.bytes_per_patch


def _resized(pictures_NRCD: Tensor, size: tuple[int, int]) -> Tensor:
    resized = F.interpolate(pictures_NRCD.permute(0, 3, 1, 2), size, mode="bilinear")
    return resized.permute(0, 2, 3, 1)
