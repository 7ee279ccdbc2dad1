"""Random LoRA adapters that PEFT itself has made, saved and can merge."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from octavo_registry.adapters import Adapter


def save_adapter(module: nn.Module, folder: Path, **settings: Any) -> Any:
    """PEFT's own model, of a copy of ``module``; all of the adapter's numbers are random."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT tells what it corrects
        torch.manual_seed(0)
        model = get_peft_model(copy.deepcopy(module), LoraConfig(**settings)).eval()
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(std=1 / 8)  # in place: some are tied
        model.save_pretrained(str(folder))
    return model


def changes(model: Any) -> dict[str, Tensor]:
    """What PEFT adds to each linear's weight [out, in], by the base model's names."""
    found = {}
    for name, module in model.base_model.model.named_modules():
        if getattr(module, "lora_A", None) or getattr(module, "lora_embedding_A", None):
            change = module.get_delta_weight("default").detach()
            found[name] = change.T if module.fan_in_fan_out or module.lora_embedding_A else change
    return found


def changes_of(adapter: Adapter) -> dict[str, Tensor]:
    """The same of ours."""
    return {
        name: adapter.scaling[name] * (adapter.up[name].float() @ adapter.down[name].float())
        for name in adapter.down
    }


def edit_config(folder: Path, **entries: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({key: each.contiguous() for key, each in edit(load_file(path)).items()}, path)
