"""Writes tests/compressed_tensors_words.safetensors by compressed-tensors itself.

pip install compressed-tensors==0.15.0
python tests/make_compressed_tensors_words.py
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

OUTPUTS, INPUTS, GROUP = 24, 96, 32


def main() -> None:
    """For each form: what the tool stores of a weight, and what it makes of that again."""
    torch.manual_seed(0)
    tensors, configs = {}, {}
    for bits, size, symmetric, ordered in product(
        (4, 8), (GROUP, -1), (True, False), (True, False)
    ):
        if ordered and size < 0:
            continue
        args = QuantizationArgs(
            num_bits=bits,
            type="int",
            strategy="channel" if size < 0 else "group",
            group_size=None if size < 0 else size,
            symmetric=symmetric,
            actorder="group" if ordered else None,
        )
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weight_OI = torch.randn(OUTPUTS, INPUTS)
        group_I = torch.arange(INPUTS) // (INPUTS if size < 0 else size)
        if ordered:
            group_I = group_I[torch.randperm(INPUTS)]
        parts = [weight_OI[:, group_I == group] for group in range(int(group_I.max()) + 1)]
        least = torch.stack([part.amin(1) for part in parts], 1)
        most = torch.stack([part.amax(1) for part in parts], 1)
        scale, zero = calculate_qparams(least, most, args)
        state = {"weight": weight_OI, "weight_scale": scale, "weight_zero_point": zero}
        if ordered:
            state["weight_g_idx"] = group_I.int()
        stored = PackedQuantizationCompressor.compress(state, scheme)
        stored = {key: tensor for key, tensor in stored.items() if tensor is not None}
        stored["expected"] = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
        form = f"{bits} {size} {symmetric} {ordered}"
        configs[form] = json.loads(scheme.model_dump_json())
        tensors |= {f"{form}/{key}": tensor.contiguous() for key, tensor in stored.items()}
    path = Path(__file__).with_name("compressed_tensors_words.safetensors")
    save_file(tensors, path, {"configs": json.dumps(configs)})


if __name__ == "__main__":
    main()
