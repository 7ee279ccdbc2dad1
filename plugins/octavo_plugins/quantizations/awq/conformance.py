"""What the conformance kit tries "awq" with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

GROUP = 32


def samples() -> QuantizationSamples:
    """Groups of 32 inputs."""
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
    return QuantizationSamples(config={**config, "version": "gemm"}, store=store)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Least and largest of a group become 0 and 15."""
    groups_OGI = weight_OI.unflatten(1, (-1, GROUP))
    least, most = groups_OGI.amin(-1, keepdim=True), groups_OGI.amax(-1, keepdim=True)
    scale = ((most - least) / 15).half().float()
    zero = (-least / scale).round().clamp(0, 15)
    codes_OGI = (groups_OGI / scale + zero).round().clamp(0, 15)
    meant_OI = ((codes_OGI - zero) * scale).flatten(1)
    stored = {
        "qweight": words(codes_OGI.flatten(1)),
        "qzeros": words(zero.squeeze(-1)),
        "scales": scale.squeeze(-1).mT.half().contiguous(),
    }
    return stored, meant_OI


def words(codes_OI: Tensor) -> Tensor:
    """Inputs first, 8 outputs a word: even ones in the lower half, odd ones in the upper."""
    codes_IW8 = codes_OI.mT.to(torch.int64).unflatten(1, (-1, 8))
    word_IW = torch.zeros_like(codes_IW8[..., 0])
    for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        word_IW |= codes_IW8[..., output] << (4 * place)
    return word_IW.to(torch.int32)
