"""What the conformance kit tries "fp8" with: blocks, whose scales checkpoints call inverse."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

BLOCK = 64
LARGEST = 448.0


def samples() -> QuantizationSamples:
    """Blocks smaller than the usual 128, so that two ranks have whole ones."""
    config = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    return QuantizationSamples(config=config, store=store)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """The largest weight of a block becomes the largest float8."""
    blocks = weight_OI.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scale = blocks.abs().amax((1, 3)) / LARGEST
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = codes.float() * scale[:, None, :, None]
    stored = {"weight": codes.view(weight_OI.shape), "weight_scale_inv": scale}
    return stored, meant.view(weight_OI.shape)
