"""The folder of a model that answers by a script."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

import octavo_plugins.sources.embedded as embedded
from markdown import ROOT

TEMPLATE = ROOT / "examples" / "chat_templates" / "hermes.jinja"
FLAGS = (
    *("--plugin", "scripted_model", "--chat-template", str(TEMPLATE)),
    *("--tool-call-parser", "hermes", "--max-num-seqs", "4"),
)
"""How `octavo serve` takes the folder, where the tests' folder is on PYTHONPATH."""
MAX_TOKENS = 131_072


def call(name: str, **arguments: object) -> str:
    """What a model writes to call a function, as the template tells it."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def write_model(folder: Path, script: list[tuple[str, str]]) -> Path:
    """``script``: patterns and answers, those of a chat's last turn first."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny = Path(embedded.__path__[0]) / "tiny"
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(tiny / name, folder)
    settings = json.loads((tiny / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"model_max_length": MAX_TOKENS})
    )
    config = json.loads((tiny / "config.json").read_text()) | {
        "architectures": ["ScriptedForCausalLM"],
        "model_type": "scripted",
        "hidden_size": 1,
        "num_hidden_layers": 1,
        "max_position_embeddings": MAX_TOKENS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "script.json").write_text(json.dumps(script))
    save_file({"unit": torch.ones(1)}, folder / "model.safetensors")
    return folder
