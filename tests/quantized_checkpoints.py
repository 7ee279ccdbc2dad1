"""Checkpoints of each format, written as its definition says, without what reads them.

Each ``store`` takes a weight [O, I] to the tensors that a checkpoint has of it, by the last part of
their names, and to the weight that these stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Store = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
E4M3 = torch.float8_e4m3fn
PLAIN = ("norm", "embed_tokens", "lm_head", ".gate", ".router", "layernorm")
"""Ends of names of modules that stay as they are."""


def fp8_tensor(static: bool = False) -> Store:
    """One scale a weight; with ``static`` one of activations besides."""

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = weight_OI.abs().max() / 448
        codes = (weight_OI / scale).to(E4M3)
        tensors = {"weight": codes, "weight_scale": scale}
        if static:
            tensors["input_scale"] = torch.tensor(0.02)
        return tensors, codes.float() * scale

    return store


def fp8_blocks(size: int) -> Store:
    """A scale for each block, which may end within it."""

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight_OI.shape
        scale = torch.empty(-(-outputs // size), -(-inputs // size))
        codes, meant = torch.empty_like(weight_OI, dtype=E4M3), torch.empty_like(weight_OI)
        for o in range(scale.shape[0]):
            for i in range(scale.shape[1]):
                at = slice(o * size, (o + 1) * size), slice(i * size, (i + 1) * size)
                scale[o, i] = weight_OI[at].abs().max() / 448
                codes[at] = (weight_OI[at] / scale[o, i]).to(E4M3)
                meant[at] = codes[at].float() * scale[o, i]
        return {"weight": codes, "weight_scale_inv": scale}, meant

    return store


def mxfp4(weight_XOI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Of stacks [X, O, I]: blocks of 32 inputs, low nibble first, and exponents with a bias."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    groups = weight_XOI.unflatten(-1, (-1, 32))
    exponents = (groups.abs().amax(-1) / 6).log2().ceil().clamp(-127, 127)
    scaled = groups / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - values).abs().argmin(-1)
    meant = (values[codes] * torch.exp2(exponents)[..., None]).flatten(-2)
    low, high = codes[..., 0::2], codes[..., 1::2]
    blocks, scales = (low + 16 * high).to(torch.uint8), (exponents + 127).to(torch.uint8)
    return {"blocks": blocks, "scales": scales}, meant


def stored(
    tensors: Mapping[str, Tensor], store: Store, is_quantized: Callable[[str], bool]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint whose linears of some names are stored so, and the same with what they mean."""
    quantized, plain = {}, {}
    for name, tensor in tensors.items():
        parent, _, key = name.rpartition(".")
        if key != "weight" or parent.endswith(PLAIN) or not is_quantized(parent):
            quantized[name] = plain[name] = tensor
            continue
        its, plain[name] = store(tensor)
        quantized |= {f"{parent}.{each}": its[each] for each in its}
    return quantized, plain
