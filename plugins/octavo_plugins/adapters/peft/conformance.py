"""What the conformance kit tries this format with."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def samples(folder: Path) -> None:
    """Write an adapter of one linear."""
    generator = torch.Generator().manual_seed(0)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(2, 8, generator=generator),
        f"{name}.lora_B.weight": torch.randn(6, 2, generator=generator),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
