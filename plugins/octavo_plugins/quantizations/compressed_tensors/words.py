"""Weights of 4 or 8 bits in words of inputs ("pack-quantized").

Axis suffixes: O outputs, I inputs, G groups of inputs, P parts of a fused product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.formats import CodedWeight, StoredTensor, only_features, unpacked
from octavo_plugins.quantizations.settings import groups_of
from octavo_registry import Axis, Site

WORD_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class PackedWords:
    """A weight is (code - zero) * scale; codes and zeros are written with half their range added.

    Words of the last inputs are filled up. Zeros, where weights are not symmetric, are words of
    outputs.
    """

    bits: int
    group_size: int
    """-1: a scale for each output."""
    symmetric: bool
    has_order: bool
    """Inputs of a group lie apart, as ``weight_g_idx`` says."""

    @property
    def unit(self) -> int:
        """See ``WeightFormat``."""
        return max(1 if self.has_order else self.group_size, WORD_BITS // self.bits)

    def tensors(self, site: Site) -> Mapping[str, StoredTensor]:
        """See ``WeightFormat``; where inputs of a group lie apart, a rank has all groups."""
        groups, lengths = groups_of(self.group_size)
        if self.has_order and self.group_size > 0:
            groups, lengths = Axis(), (-(-site.inputs.total // self.group_size),)
        word, part = WORD_BITS // self.bits, Axis("part")
        found = {
            "weight_packed": StoredTensor((Axis("out"), Axis("in", word)), torch.int32),
            "weight_scale": StoredTensor((Axis("out"), groups), torch.float32, lengths),
            "weight_shape": StoredTensor((part, Axis()), torch.int64, (2,)),
        }
        if not self.symmetric:
            axes = Axis("out", word), groups
            found["weight_zero_point"] = StoredTensor(axes, torch.int32, lengths)
        if self.has_order:
            found["weight_g_idx"] = StoredTensor((part, Axis("in")), torch.int32)
        return found

    def coded(self, stored: Mapping[str, Tensor], site: Site) -> CodedWeight:
        """See ``WeightFormat``."""
        self._check_shape(stored["weight_shape"], site)
        word, half = WORD_BITS // self.bits, 1 << (self.bits - 1)
        codes_OI = unpacked(stored["weight_packed"], self.bits, 1)[:, : site.in_features]
        scale_OG = stored["weight_scale"]
        zero_OG = torch.full_like(scale_OG, half, dtype=torch.uint8)
        if not self.symmetric:
            zero_OG = unpacked(stored["weight_zero_point"], self.bits, 0)
            zero_OG = only_features(zero_OG, 0, word, site)
        return CodedWeight(
            codes_OI=codes_OI.contiguous(),
            scale_OG=scale_OG,
            zero_OG=zero_OG,
            group_size=self.group_size if self.group_size > 0 else site.in_features,
            group_I=self._groups(stored, site),
        )

    def _groups(self, stored: Mapping[str, Tensor], site: Site) -> Tensor | None:
        if not self.has_order or self.group_size < 0:
            return None
        groups_PI = stored["weight_g_idx"]
        most = (site.inputs.total - 1) // self.group_size
        if not groups_PI.is_meta:
            if not bool((groups_PI == groups_PI[:1]).all()):
                raise ModelError(f"{site.name}: the parts' weight_g_idx differ")
            if not 0 <= int(groups_PI.min()) <= int(groups_PI.max()) <= most:
                raise ModelError(f"{site.name}.weight_g_idx names groups beyond the last, {most}")
        return groups_PI[0].contiguous()

    def _check_shape(self, shapes_P2: Tensor, site: Site) -> None:
        """Words do not tell how many inputs the last one has, so the checkpoint does."""
        if shapes_P2.is_meta or not bool(shapes_P2.any()):  # dummy weights have zeros
            return
        for part, shape in zip(site.parts, shapes_P2.tolist(), strict=True):
            expected = [part.outputs.total, site.inputs.total]
            if shape != expected:
                raise ModelError(f"{part.name}.weight_shape is {shape}, and must be {expected}")
