"""What the conformance kit tries "compressed-tensors" with: words of 4 bits that have zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

GROUP: Final = 32
WEIGHTS: Final[Mapping[str, Any]] = {
    "num_bits": 4,
    "type": "int",
    "strategy": "group",
    "group_size": GROUP,
    "symmetric": False,
}


def samples() -> QuantizationSamples:
    """One group of all linears."""
    group = {"targets": ["Linear"], "weights": WEIGHTS}
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["mlp.gate"],
    }
    return QuantizationSamples(config=config, store=store)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Least and largest of a group become -8 and 7; 8 is added to all that is written."""
    groups_OGI = weight_OI.unflatten(1, (-1, GROUP))
    least, most = groups_OGI.amin(-1, keepdim=True), groups_OGI.amax(-1, keepdim=True)
    scale = (most - least) / 15
    zero = (-8 - least / scale).round().clamp(-8, 7)
    codes_OGI = (groups_OGI / scale + zero).round().clamp(-8, 7)
    stored = {
        "weight_packed": words(codes_OGI.flatten(1)),
        "weight_scale": scale.squeeze(-1),
        "weight_zero_point": words(zero.squeeze(-1).mT).mT.contiguous(),
        "weight_shape": torch.tensor(weight_OI.shape),
    }
    return stored, ((codes_OGI - zero) * scale).flatten(1)


def words(codes: Tensor) -> Tensor:
    """Eight codes of the last axis a word, the first in the lowest bits."""
    eights = (codes + 8).to(torch.int64).unflatten(-1, (-1, 8))
    summed: Tensor = (eights << torch.arange(0, 32, 4)).sum(-1)
    return summed.to(torch.int32)
