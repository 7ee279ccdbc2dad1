"""LoRA on the training model: each linear of a layer gets two thin matrices, and learns in them.

Axes in names: T tokens, I inputs, R rank, O outputs.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from examples.train_tiny.model import Llama
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Entries of adapter_config.json."""

    r: int = 8
    lora_alpha: int = 16
    target_modules: tuple[str, ...] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )


class AdaptedLinear(nn.Module):
    """A linear that stays as it is, and what is learnt beside it: nothing, to begin with."""

    def __init__(self, linear: nn.Linear, lora: LoRA) -> None:
        super().__init__()
        self.linear = linear
        self.scaling = lora.lora_alpha / lora.r
        self.down_RI = nn.Parameter(torch.empty(lora.r, linear.in_features))
        self.up_OR = nn.Parameter(torch.zeros(linear.out_features, lora.r))
        nn.init.kaiming_uniform_(self.down_RI, a=math.sqrt(5))

    def forward(self, x_TI: Tensor) -> Tensor:
        change_TO = F.linear(F.linear(x_TI, self.down_RI), self.up_OR)
        return self.linear(x_TI) + self.scaling * change_TO


def adapt(model: Llama, lora: LoRA) -> dict[str, AdaptedLinear]:
    """Freeze the model and put matrices beside its linears; returns these by their names."""
    model.requires_grad_(False)
    names = [name for name, _ in model.named_modules() if name.endswith(lora.target_modules)]
    adapted = {}
    for name in names:
        parent, _, child = name.rpartition(".")
        adapted[name] = AdaptedLinear(model.get_submodule(name), lora)
        setattr(model.get_submodule(parent), child, adapted[name])
    return adapted


def save_adapter(
    adapted: dict[str, AdaptedLinear], lora: LoRA, folder: Path, *, base_model: str
) -> None:
    """Write what PEFT's ``save_pretrained`` would, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, linear in adapted.items():
        matrices = {"A": linear.down_RI, "B": linear.up_OR}
        for letter, matrix in matrices.items():
            key = f"base_model.model.{name}.lora_{letter}.weight"
            weights[key] = matrix.detach().to("cpu", torch.bfloat16)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.r,
        "lora_alpha": lora.lora_alpha,
        "target_modules": list(lora.target_modules),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
