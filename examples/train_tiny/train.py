"""Trains the model: ``python -m examples.train_tiny.train FOLDER``, where the tokenizer is.

Minutes on a GPU. On a CPU, ``--steps 20 --tokens 2048`` shows that everything works.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
from examples.train_tiny.batches import Batch, Mixture, load_batches
from examples.train_tiny.chat import END, END_OF_TEXT
from examples.train_tiny.model import Llama, ModelConfig
from examples.train_tiny.optimizer import Muon
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.05
MUON_PEAK, ADAMW_PEAK = 0.02, 4e-3
WARMUP = 0.02
COPYING = 0.03
MAX_GRADIENT = 1.0
LOG_EVERY = 50


def share_of_peak(step: int, steps: int) -> float:
    """The learning rate: up in a straight line, then down to zero along a cosine."""
    progress = step / steps
    if progress < WARMUP:
        return progress / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def make_optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between vectors, AdamW for what is looked up or multiplied in."""
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    rest = [model.model.embed_tokens.weight, *norms]
    return [
        Muon(matrices, lr=MUON_PEAK, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(
            rest, lr=ADAMW_PEAK, betas=BETAS, weight_decay=0.0, fused=rest[0].is_cuda
        ),
    ]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    on_gpu = batch.ids_T.is_cuda  # a CPU gains nothing from bfloat16
    with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
        logits_TV = model(batch.ids_T, batch.positions_T, batch.borders)
    losses_T = F.cross_entropy(logits_TV.float(), batch.targets_T, reduction="none")
    return (losses_T * batch.weights_T).sum() / batch.weights_T.sum()


def train(
    folder: Path,
    *,
    steps: int,
    tokens: int,
    seed: int,
    workers: int,
    config: ModelConfig | None = None,
) -> Llama:
    """Train from nothing on the corpus of ``seed``, with the tokenizer in ``folder``."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = Llama(config or ModelConfig()).to(device)
    if device == "cuda":
        for layer in model.model.layers:
            layer.compile()  # one layer's code serves all of them
    optimizers = make_optimizers(model)
    schedules = [LambdaLR(each, lambda step: share_of_peak(step, steps)) for each in optimizers]
    mixture = Mixture(
        seed=seed, num_batches=steps, num_tokens=tokens, copying_batches=int(COPYING * steps)
    )
    started = logged = time.perf_counter()
    steps_logged = 0
    for step, cpu_batch in enumerate(load_batches(folder / "tokenizer.json", mixture, workers)):
        batch = cpu_batch.to(device)
        if device == "cuda":
            torch._dynamo.mark_dynamic(batch.borders, 0)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if step % LOG_EVERY == 0 or step == steps - 1:
            value, now = loss.item(), time.perf_counter()
            speed = (step + 1 - steps_logged) * tokens / (now - logged) / 1e6
            print(
                f"step {step:5} loss {value:.4f} {now - started:6.1f} s {speed:.2f} M tokens/s",
                flush=True,
            )
            logged, steps_logged = now, step + 1
    return model


def save(model: Llama, folder: Path) -> None:
    """Write config and bf16 weights beside the tokenizer."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = {
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": [ids[END], ids[END_OF_TEXT]],
        "pad_token_id": ids[END_OF_TEXT],
    }
    (folder / "config.json").write_text(json.dumps(model.config.as_json() | ends, indent=2) + "\n")
    generation = {"do_sample": False, **ends}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    weights = {name: p.detach().to("cpu", torch.bfloat16) for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.train_tiny.train")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=98304, help="tokens in a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=14)
    options = vars(parser.parse_args())
    save(train(**options), options["folder"])


if __name__ == "__main__":
    main()
