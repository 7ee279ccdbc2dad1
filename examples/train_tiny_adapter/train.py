"""Trains the adapter: ``python -m examples.train_tiny_adapter.train FOLDER``.

Minutes on two CPU cores; the model that it is trained on stays as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path

import torch
from examples.train_tiny.batches import batch_of
from examples.train_tiny.model import Llama, ModelConfig
from examples.train_tiny.train import LOG_EVERY, loss_of, share_of_peak
from examples.train_tiny_adapter.lora import LoRA, adapt, save_adapter
from examples.train_tiny_adapter.pirate import pirate_documents
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.optim.lr_scheduler import LambdaLR

from octavo.weights import find_model
from octavo_registry import PluginHost

BASE_MODEL = "octavo/tiny"
PEAK = 2e-3


def load_model(folder: Path) -> Llama:
    """The model that ships, as it is trained."""
    entries = json.loads((folder / "config.json").read_text())
    model = Llama(ModelConfig(**{each.name: entries[each.name] for each in fields(ModelConfig)}))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return model


def train(folder: Path, *, steps: int, tokens: int, seed: int, lora: LoRA) -> None:
    """Train on the pirate's corpus of ``seed``, and write the adapter to ``folder``."""
    torch.manual_seed(seed)
    base = find_model(PluginHost.discover(), BASE_MODEL)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    model = load_model(base)
    adapted = adapt(model, lora)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=PEAK, weight_decay=0.0
    )
    schedule = LambdaLR(optimizer, lambda step: share_of_peak(step, steps))
    documents = pirate_documents(seed)
    started = time.perf_counter()
    for step in range(steps):
        loss = loss_of(model, batch_of(documents, tokenizer, tokens))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % LOG_EVERY == 0 or step == steps - 1:
            seconds = time.perf_counter() - started
            print(f"step {step:5} loss {loss.item():.4f} {seconds:6.1f} s", flush=True)
    save_adapter(adapted, lora, folder, base_model=BASE_MODEL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny_adapter.train")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in a batch")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    rank = options.pop("rank")
    train(**options, lora=LoRA(r=rank, lora_alpha=2 * rank))


if __name__ == "__main__":
    main()
