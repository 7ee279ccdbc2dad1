"""Tiny models in every form of stored weights, and with the weights that these stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.weights.load import finish_layers
from quantized_checkpoints import (
    E4M3,
    Store,
    awq,
    fp8_blocks,
    fp8_tensor,
    gptq,
    packed,
    scaled,
    stored,
)
from small_models import HOST, Case, Checkpoint, cases_of, run_stages

MODELS = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM")
VARIANTS = cases_of(*MODELS)
FIRST: dict[str, Case] = {case[0]: case for case in reversed(VARIANTS)}


class Form(NamedTuple):
    """A checkpoint's quantization_config, and how it stores a linear."""

    config: dict[str, Any]
    store: Store
    unit: int = 1
    """Outputs and inputs that a rank must have whole."""


def compressed(form: str, weights: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group of all linears."""
    group = {"targets": ["Linear"], "weights": weights, **changes}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
        "quantization_status": "compressed",
    }


def packing(bits: int, size: int, **changes: Any) -> dict[str, Any]:
    """One that packs words."""
    strategy = {"strategy": "channel"} if size < 0 else {"strategy": "group", "group_size": size}
    return compressed("pack-quantized", {"num_bits": bits, "type": "int", **strategy, **changes})


def scales(form: str, kind: str, strategy: str, **changes: Any) -> dict[str, Any]:
    """One of 8 bits that are not packed."""
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True}
    sizes = {"group": {"group_size": 16}, "block": {"block_structure": [16, 16]}}
    return compressed(form, {**weights, **sizes.get(strategy, {})}, **changes)


def gptq_config(bits: int, size: int, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **changes}


FP8 = {"quant_method": "fp8"}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
STATIC = {"input_activations": {"num_bits": 8, "type": "float", "dynamic": False}}
FORMS = {
    "fp8": Form({**FP8, "activation_scheme": "dynamic"}, fp8_tensor()),
    "fp8 static": Form({**FP8, "activation_scheme": "static"}, fp8_tensor(static=True)),
    "fp8 blocks": Form({**FP8, "weight_block_size": [16, 16], "fmt": "e4m3"}, fp8_blocks(16), 16),
    "awq": Form({**AWQ, "group_size": 8}, awq(8), 8),
    "awq, a scale an output": Form({**AWQ, "group_size": -1}, awq(-1), 8),
    "gptq": Form(gptq_config(4, 16), gptq(4, 16), 16),
    "gptq, a scale an output": Form(gptq_config(4, -1), gptq(4, -1), 8),
    "gptq of 8 bits": Form(gptq_config(8, 16), gptq(8, 16), 16),
    "gptq, inputs out of order": Form(
        gptq_config(4, 16, desc_act=True, sym=False), gptq(4, 16, desc_act=True), 8
    ),
    "gptq, second form": Form(
        gptq_config(4, 16, checkpoint_format="gptq_v2"), gptq(4, 16, form=2), 16
    ),
    "words": Form(packing(4, 16, symmetric=True), packed(4, 16, symmetric=True), 16),
    "words with zeros": Form(packing(4, 8, symmetric=False), packed(4, 8, symmetric=False), 8),
    "words of 8 bits": Form(packing(8, -1, symmetric=True), packed(8, -1, symmetric=True), 4),
    "words out of order": Form(
        packing(4, 16, symmetric=False, actorder="group"),
        packed(4, 16, symmetric=False, ordered=True),
        8,
    ),
    "float8 by output": Form(
        scales("float-quantized", "float", "channel", input_activations={"dynamic": True}),
        scaled(E4M3, "channel"),
    ),
    "float8 by tensor": Form(
        scales("float-quantized", "float", "tensor", **STATIC), scaled(E4M3, "tensor", static=True)
    ),
    "float8 by block": Form(scales("float-quantized", "float", "block"), scaled(E4M3, "block"), 16),
    "int8 by output": Form(
        scales("int-quantized", "int", "channel"), scaled(torch.int8, "channel")
    ),
    "int8 by group": Form(
        scales("naive-quantized", "int", "group"), scaled(torch.int8, "group"), 16
    ),
    "modelopt": Form(
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*norm*"]},
        fp8_tensor(static=True),
    ),
}


class Pair:
    """A checkpoint as it is stored, and one with the weights that it stands for."""

    def __init__(self, architecture: str, folder: Path, form: Form) -> None:
        case = FIRST[architecture]
        self.plain = Checkpoint(case, VARIANTS[case], folder)
        self.quantized = Checkpoint(case, VARIANTS[case], folder)
        self.config, self.folder = form.config, folder
        self.quantized.tensors, self.plain.tensors = stored(
            self.plain.tensors, form.store, lambda name: True
        )

    def expected(self) -> Tensor:
        """The logits of plain weights."""
        return logits_of(self.plain)

    def found(self, **changes: Any) -> Tensor:
        """The logits of the stored ones."""
        make = HOST.quantizations.make
        quantization = make(self.config["quant_method"], self.config, self.quantized.config)
        return logits_of(self.quantized, quantization=quantization, **changes)

    def write(self) -> None:
        """Let the folder have what is stored."""
        config = {**self.quantized.config, "quantization_config": self.config}
        (self.folder / "config.json").write_text(json.dumps(config))
        save_file(self.quantized.tensors, self.folder / "model.safetensors")


def logits_of(checkpoint: Checkpoint, **changes: Any) -> Tensor:
    model = checkpoint.loaded(**changes)
    finish_layers(model)
    return run_stages([model])


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
