"""What the conformance kit tries "mxfp4" with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def samples() -> QuantizationSamples:
    """Stacks, as gpt-oss has them."""
    return QuantizationSamples(config={"quant_method": "mxfp4"}, store=store, stacked=True)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """The largest of a group is at most 6 times its power of two; each is the nearest number."""
    groups_OGI = weight_OI.unflatten(1, (-1, 32))
    exponent_OG1 = (groups_OGI.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    scaled_OGI = groups_OGI / exponent_OG1.exp2()
    values = torch.tensor(VALUES)
    code_OGI = (scaled_OGI.abs()[..., None] - values).abs().argmin(-1)
    meant_OGI = values[code_OGI] * scaled_OGI.sign() * exponent_OG1.exp2()
    code_OGI = (code_OGI + 8 * (scaled_OGI < 0)).to(torch.uint8)
    blocks = code_OGI[..., ::2] | (code_OGI[..., 1::2] << 4)
    scales = (exponent_OG1.squeeze(-1) + 127).to(torch.uint8)
    return {"blocks": blocks, "scales": scales}, meant_OGI.flatten(1)
