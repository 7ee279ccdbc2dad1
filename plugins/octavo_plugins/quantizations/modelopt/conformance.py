"""What the conformance kit tries "modelopt" with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

LARGEST = 448.0


def samples() -> QuantizationSamples:
    """The largest weight becomes the largest float8."""
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    return QuantizationSamples(config=config, store=store)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """One scale of the weight, and one of activations, which nothing here uses."""
    scale = weight_OI.abs().max() / LARGEST
    codes_OI = (weight_OI / scale).to(torch.float8_e4m3fn)
    stored = {"weight": codes_OI, "weight_scale": scale, "input_scale": torch.tensor(0.02)}
    return stored, codes_OI.float() * scale
