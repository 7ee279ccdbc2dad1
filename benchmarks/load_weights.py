"""From files to a device: python -m benchmarks.load_weights [--layers 9]

Writes layers of the 8B shape as a checkpoint of several files, then loads it, from the page cache
and from the disk, staged and as plain copies of mapped files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.compare.shapes import SHAPES, Shape, write_model
from octavo.config import ModelConfig
from octavo.model_folder import open_model
from octavo.weights import Checkpoint, open_checkpoint
from octavo.weights.load import load_model
from octavo.weights.staging import staged_tensors
from octavo_registry import PluginHost

LAYERS_PER_FILE = 4


def write_checkpoint(shape: Shape, folder: Path) -> None:
    """Random bits below 2**14, which are small bf16 numbers."""
    write_model(shape, folder)

    def some(*sizes: int) -> Tensor:
        bits = torch.randint(0, 2**14, sizes, dtype=torch.int16, device=device)
        return bits.view(torch.bfloat16).cpu()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
    kv_heads, inner = shape.num_kv_heads * shape.head_dim, shape.intermediate_size
    shapes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    ends = {
        "model.embed_tokens.weight": some(shape.vocab_size, hidden),
        "model.norm.weight": some(hidden),
        "lm_head.weight": some(shape.vocab_size, hidden),
    }
    save_file(ends, folder / "ends.safetensors")
    for first in range(0, shape.num_layers, LAYERS_PER_FILE):
        tensors = {
            f"model.layers.{layer}.{name}.weight": some(*sizes)
            for layer in range(first, min(first + LAYERS_PER_FILE, shape.num_layers))
            for name, sizes in shapes.items()
        }
        save_file(tensors, folder / f"{first:03}.safetensors")
    os.sync()


def forget(checkpoint: Checkpoint) -> None:
    """Drop the files from the page cache."""
    for path in checkpoint.files:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def gigabytes_per_second(num_bytes: int, work: Callable[[], object]) -> float:
    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    start = now()
    work()
    return num_bytes / (now() - start) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=9, help="436 MB each, beside 2.1 GB of ends")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    args = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    shape = replace(SHAPES[args.shape], num_layers=args.layers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(shape, folder)
        checkpoint = open_checkpoint(folder)
        num_bytes = sum(entries[-1].end for entries in checkpoint.files.values())
        host = PluginHost.discover()
        config = ModelConfig(model=str(folder), skip_tokenizer_init=True)
        opened = open_model(config, host)

        def take(tensors: Iterable[tuple[Path, str, Tensor]]) -> None:
            for _, _, tensor in tensors:
                torch.empty_like(tensor, device=device).copy_(tensor)

        works: dict[str, Callable[[], object]] = {
            "load_model": lambda: load_model(opened, host, config=config, device=device),
            "staged": lambda: take(staged_tensors(checkpoint, device)),
            "mapped": lambda: take(checkpoint.tensors()),
        }
        print(f"{num_bytes / 1e9:.2f} GB in {len(checkpoint.files)} files, to {device}, GB/s:")
        for label, work in works.items():
            cached = [gigabytes_per_second(num_bytes, work) for _ in range(args.rounds)]
            forget(checkpoint)
            cold = gigabytes_per_second(num_bytes, work)
            print(label, "cached", *(f"{rate:.1f}" for rate in cached), f"disk {cold:.1f}")


if __name__ == "__main__":
    main()
