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


def scaled(dtype: torch.dtype, strategy: str, size: int = 16, static: bool = False) -> Store:
    """As compressed-tensors has float8 and int8: by "tensor", "channel", "group" or "block"."""
    most = 448 if dtype == E4M3 else 127

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs, inputs = weight_OI.shape
        high = {"tensor": outputs, "channel": 1, "group": 1, "block": size}[strategy]
        wide = {"tensor": inputs, "channel": inputs, "group": size, "block": size}[strategy]
        scale = torch.empty(-(-outputs // high), -(-inputs // wide))
        codes, meant = torch.empty_like(weight_OI, dtype=dtype), torch.empty_like(weight_OI)
        for o in range(scale.shape[0]):
            for i in range(scale.shape[1]):
                at = slice(o * high, (o + 1) * high), slice(i * wide, (i + 1) * wide)
                scale[o, i] = weight_OI[at].abs().max() / most
                code = weight_OI[at] / scale[o, i]
                codes[at] = (code if dtype == E4M3 else code.round()).to(dtype)
                meant[at] = codes[at].float() * scale[o, i]
        tensors = {
            "weight": codes,
            "weight_scale": scale.view(1) if strategy == "tensor" else scale,
        }
        if static:
            tensors["input_scale"] = torch.tensor([0.02])
        return tensors, meant

    return store


def words_of(codes: Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes in words of 32 bits along an axis, the first in the lowest bits; the last filled up.

    With an ``order`` the lowest bits have entry ``order[0]`` of a word, the next ``order[1]``.
    """
    number = 32 // bits
    codes = codes.movedim(dim, 0).to(torch.int64)
    words = torch.zeros((-(-len(codes) // number), *codes.shape[1:]), dtype=torch.int64)
    places = order or tuple(range(number))
    for word in range(len(words)):
        for place, entry in enumerate(places):
            at = word * number + entry
            if at < len(codes):
                words[word] |= codes[at] << (bits * place)
    return words.to(torch.int32).movedim(0, dim).contiguous()


def in_groups(
    weight_OI: Tensor, bits: int, group_I: Tensor, *, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [O, I] from 0 on, scales and zeros [O, G], and the weights they stand for."""
    most, num_groups = 2**bits - 1, int(group_I.max()) + 1
    scale, zero = torch.empty(2, len(weight_OI), num_groups)
    codes, meant = torch.empty_like(weight_OI), torch.empty_like(weight_OI)
    for group in range(num_groups):
        at = group_I == group
        part = weight_OI[:, at]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            scale[:, group] = (torch.maximum(-low, high) * 2 / most).half().float()
            zero[:, group] = 2 ** (bits - 1)
        else:
            scale[:, group] = ((high - low) / most).half().float()
            zero[:, group] = (-low / scale[:, group]).round().clamp(1, most)
        scales, zeros = scale[:, group, None], zero[:, group, None]
        codes[:, at] = (part / scales + zeros).round().clamp(0, most)
        meant[:, at] = (codes[:, at] - zeros) * scales
    return codes, scale, zero, meant


def groups_in_order(inputs: int, size: int) -> Tensor:
    """Each input's group; -1 is one group of all."""
    return torch.arange(inputs) // (inputs if size < 0 else size)


def awq(size: int) -> Store:
    """Inputs first, words of 8 outputs: even ones in the lower half, odd ones in the upper."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        group_I = groups_in_order(weight_OI.shape[1], size)
        codes, scale, zero, meant = in_groups(weight_OI, 4, group_I, symmetric=False)
        return {
            "qweight": words_of(codes.mT, 4, 1, order),
            "qzeros": words_of(zero.mT, 4, 1, order),
            "scales": scale.mT.half().contiguous(),
        }, meant

    return store


def gptq(bits: int, size: int, *, desc_act: bool = False, form: int = 1) -> Store:
    """Words of inputs, inputs first; zeros are words of outputs, in the first form less 1."""

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight_OI.shape[1]
        group_I = groups_in_order(inputs, size)
        if desc_act:
            group_I = group_I[torch.randperm(inputs, generator=torch.Generator().manual_seed(0))]
        codes, scale, zero, meant = in_groups(weight_OI, bits, group_I, symmetric=False)
        return {
            "qweight": words_of(codes.mT, bits, 0),
            "qzeros": words_of(zero.mT - int(form == 1), bits, 1),
            "scales": scale.mT.half().contiguous(),
            "g_idx": group_I.int(),
        }, meant

    return store


def packed(bits: int, size: int, *, symmetric: bool, ordered: bool = False) -> Store:
    """As compressed-tensors packs: words of inputs, outputs first, half the range added."""

    def store(weight_OI: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight_OI.shape[1]
        group_I = groups_in_order(inputs, size)
        if ordered:
            group_I = group_I[torch.randperm(inputs, generator=torch.Generator().manual_seed(0))]
        codes, scale, zero, meant = in_groups(weight_OI, bits, group_I, symmetric=symmetric)
        tensors = {
            "weight_packed": words_of(codes, bits, 1),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight_OI.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words_of(zero, bits, 0)
        if ordered:
            tensors["weight_g_idx"] = group_I.int()
        return tensors, meant

    return store


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
