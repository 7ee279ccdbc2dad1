"""A complete small Llama folder with random weights, made in well under a second.

Names and files are those of Hugging Face, so that ``transformers`` loads it as it does any other.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo.errors import ConfigError
from octavo.testing.tiny_tokenizer import (
    BOS_ID,
    EOS_ID,
    MIN_VOCAB_SIZE,
    PAD_ID,
    make_tiny_tokenizer,
)

Weights = Iterator[tuple[str, Tensor]]

NUM_SHARDS = 3

# Measured with transformers over ten prompts of several seeds, tied and untied, 2 to 6 layers: 48
# greedy tokens hold about 35 different ones, the best logit leads the next by 0.6 in the median
# (5 % of positions: under 0.05) at a spread of 3, and float32 is within 5e-5 of float64. With an
# output gain of 1, a tied model repeats its last token.
QK_GAIN = 1.5
OUTPUT_GAIN = 8.0
LOGIT_STD = 3.0


def make_random_model(
    folder: str | Path,
    *,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    vocab_size: int = 512,
    hidden_size: int = 64,
    intermediate_size: int = 160,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    max_position_embeddings: int = 1024,
    tie: bool = False,
    sharded: bool = False,
    dtype: str = "float32",
    **config: Any,
) -> Path:
    """Write config, weights and tokenizer into ``folder`` and return it.

    ``sharded`` deals the tensors out to three files in turn, so that what a model fuses comes from
    different files. ``config`` adds entries to config.json; ``attention_bias`` and ``mlp_bias`` are
    heeded in the weights too.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(f"vocab_size={vocab_size} must be at least {MIN_VOCAB_SIZE}")
    settings = {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim or hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tie,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": dtype,
        **config,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", settings)
    _write_json(
        folder / "generation_config.json",
        {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID},
    )
    make_tiny_tokenizer(folder, vocab_size=vocab_size, max_length=max_position_embeddings)
    stored = getattr(torch, dtype)
    tensors = {name: tensor.to(stored) for name, tensor in _random_tensors(settings, seed)}
    _write_weights(folder, tensors, NUM_SHARDS if sharded else 1)
    return folder


def _random_tensors(config: Mapping[str, Any], seed: int) -> Weights:
    """Weights by their Hugging Face names, under which greedy decoding is sharp and varied."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    def linear(name: str, inputs: int, outputs: int, gain: float, *, bias: bool) -> Weights:
        yield f"{name}.weight", normal(outputs, inputs, std=gain / math.sqrt(inputs))
        if bias:
            yield f"{name}.bias", normal(outputs, std=0.1)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    attention_bias, mlp_bias = config["attention_bias"], config["mlp_bias"]
    tied = config["tie_word_embeddings"]

    embedding_std = LOGIT_STD / math.sqrt(hidden) if tied else 1.0
    yield "model.embed_tokens.weight", normal(config["vocab_size"], hidden, std=embedding_std)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", 1 + normal(hidden, std=0.1)
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        yield from linear(f"{attention}.q_proj", hidden, q_size, QK_GAIN, bias=attention_bias)
        yield from linear(f"{attention}.k_proj", hidden, kv_size, QK_GAIN, bias=attention_bias)
        yield from linear(f"{attention}.v_proj", hidden, kv_size, 1.0, bias=attention_bias)
        yield from linear(f"{attention}.o_proj", q_size, hidden, OUTPUT_GAIN, bias=attention_bias)
        yield from linear(f"{mlp}.gate_proj", hidden, inner, 1.0, bias=mlp_bias)
        yield from linear(f"{mlp}.up_proj", hidden, inner, 1.0, bias=mlp_bias)
        yield from linear(f"{mlp}.down_proj", inner, hidden, OUTPUT_GAIN, bias=mlp_bias)
    yield "model.norm.weight", 1 + normal(hidden, std=0.1)
    if not tied:
        yield from linear("lm_head", hidden, config["vocab_size"], LOGIT_STD, bias=False)


def _write_weights(folder: Path, tensors: dict[str, Tensor], num_shards: int) -> None:
    """One file, or shards dealt in turn with their index."""
    metadata = {"format": "pt"}
    single = folder / "model.safetensors"
    if num_shards == 1:
        save_file(tensors, single, metadata=metadata)
        return
    single.unlink(missing_ok=True)  # of an earlier call; it would go before the index
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::num_shards]}
        save_file(part, folder / file_name, metadata=metadata)
        weight_map |= dict.fromkeys(part, file_name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Command line: ``python -m octavo.testing.random_model FOLDER``."""
    parser = argparse.ArgumentParser(prog="python -m octavo.testing.random_model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--tie", action="store_true")
    parser.add_argument("--sharded", action="store_true")
    make_random_model(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
