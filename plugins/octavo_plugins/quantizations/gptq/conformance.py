"""What the conformance kit tries "gptq" with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo.testing.quantization import QuantizationSamples

GROUP = 32


def samples() -> QuantizationSamples:
    """Groups of 32 inputs that lie apart, as ``desc_act`` leaves them."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
    return QuantizationSamples(config={**config, "sym": False}, store=store)


def store(weight_OI: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Least and largest of a group become 0 and 15; a zero is written less 1."""
    num_inputs = weight_OI.shape[1]
    order_I = torch.randperm(num_inputs, generator=torch.Generator().manual_seed(num_inputs))
    groups_OGI = weight_OI[:, order_I].unflatten(1, (-1, GROUP))
    least, most = groups_OGI.amin(-1, keepdim=True), groups_OGI.amax(-1, keepdim=True)
    scale = ((most - least) / 15).half().float()
    zero = (-least / scale).round().clamp(1, 16)
    codes_OGI = (groups_OGI / scale + zero).round().clamp(0, 15)
    back_I = order_I.argsort()
    stored = {
        "qweight": words(codes_OGI.flatten(1)[:, back_I].mT),
        "qzeros": words(zero.squeeze(-1) - 1).mT.contiguous(),
        "scales": scale.squeeze(-1).mT.half().contiguous(),
        "g_idx": (back_I // GROUP).to(torch.int32),
    }
    return stored, ((codes_OGI - zero) * scale).flatten(1)[:, back_I]


def words(codes: Tensor) -> Tensor:
    """Eight codes of the first axis a word, the first in the lowest bits."""
    eights = codes.to(torch.int64).unflatten(0, (-1, 8))
    shifts = torch.arange(0, 32, 4)[:, None]
    summed: Tensor = (eights << shifts).sum(1)
    return summed.to(torch.int32)
