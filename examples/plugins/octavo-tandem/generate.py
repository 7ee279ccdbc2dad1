"""Makes a small random Tandem checkpoint, as Hugging Face stores them, and generates with it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from octavo_tandem.reference import reference
from safetensors.torch import save_file

from octavo import LLM, SamplingParams
from octavo.testing.tiny_tokenizer import EOS_ID, make_tiny_tokenizer

CONFIG = {
    "architectures": ["TandemForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "logit_scale": 0.2,
    "eos_token_id": EOS_ID,
    "dtype": "float32",
}
PROMPTS = ["A book begins", "The capital of France is", "def count(words):"]


def make_checkpoint(folder: Path) -> None:
    """Write config.json, model.safetensors and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file(reference(CONFIG).state_dict(), folder / "model.safetensors")
    make_tiny_tokenizer(
        folder, vocab_size=CONFIG["vocab_size"], max_length=CONFIG["max_position_embeddings"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="made if it does not exist")
    parser.add_argument("--engine-process", action="store_true", help="run the engine beside us")
    args = parser.parse_args()
    if not args.folder.exists():
        make_checkpoint(args.folder)
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=24)
    with LLM(str(args.folder), engine_process=args.engine_process) as llm:
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            print(repr(output.prompt + output.outputs[0].text))


if __name__ == "__main__":
    main()
