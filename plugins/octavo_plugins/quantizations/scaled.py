"""Weights of 8 bits that stand as they are, and their scales.

Axis suffixes: O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from octavo.layers.formats import CodedWeight, StoredTensor, by_feature
from octavo_registry import Axis, Site

OUT, IN, PART = Axis("out"), Axis("in"), Axis("part")
INPUT_SCALE: Final = StoredTensor((PART,), torch.float32)
"""Static scales of activations, which products of 16-bit activations do not need."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """``weight`` times a scale for each part, output or block."""

    dtype: torch.dtype
    scale: str
    scale_axes: tuple[Axis, ...]
    scale_dtype: torch.dtype = torch.float32
    static: bool = False
    """Checkpoints have ``input_scale`` too."""

    @property
    def unit(self) -> int:
        """See ``WeightFormat``: blocks of outputs and of inputs."""
        return max(axis.unit for axis in self.scale_axes)

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """See ``WeightFormat``."""
        ones = tuple(1 for axis in self.scale_axes if axis.along is None)
        return {
            "weight": StoredTensor((OUT, IN), self.dtype),
            self.scale: StoredTensor(self.scale_axes, self.scale_dtype, ones),
            **({"input_scale": INPUT_SCALE} if self.static else {}),
        }

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """See ``WeightFormat``."""
        scale = by_feature(stored[self.scale].float(), self.scale_axes, site)
        units = [axis.unit for axis in self.scale_axes if axis.along == "in"]
        return CodedWeight(
            codes_OI=stored["weight"],
            scale_OG=scale.view(site.out_features, -1),
            group_size=units[0] if units else site.in_features,
        )


def per_part(dtype: torch.dtype, *, static: bool = False) -> Scaled:
    """One scale a weight."""
    return Scaled(dtype, "weight_scale", (PART,), static=static)


def per_block(scale: str, outputs: int, inputs: int) -> Scaled:
    """A scale for each block of float8 weights."""
    axes = Axis("out", outputs), Axis("in", inputs)
    return Scaled(torch.float8_e4m3fn, scale, axes)
