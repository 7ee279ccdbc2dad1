"""Makes a small random TableLlama, and asks it about tables: as objects, as CSV, and in a chat."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from octavo_tables.decoder import MAX_COLUMNS
from octavo_tables.model import NUM_FREQUENCIES
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from octavo import LLM, SamplingParams
from octavo.testing.random_model import make_random_model
from octavo.testing.tiny_tokenizer import make_tiny_tokenizer

HIDDEN = 64
COLUMNS = {"year": [1970, 1980, 1990], "height": [1.5, 2.5, 4.0]}
CSV = b"year,height\n1970,4.0\n1980,2.5\n1990,1.5\n"


def make_checkpoint(folder: Path) -> None:
    """A random Llama with a table's token in its tokenizer, and the encoder's weights."""
    make_random_model(folder, architecture="TableLlamaForCausalLM", hidden_size=HIDDEN)
    make_tiny_tokenizer(folder, vocab_size=500, max_length=1024)  # it leaves ids for more tokens
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<table>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    config["table_token_id"] = tokenizer.token_to_id("<table>")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    weights |= {
        "tables.number.weight": torch.randn(HIDDEN, 2 * NUM_FREQUENCIES),
        "tables.number.bias": torch.zeros(HIDDEN),
        "tables.columns.weight": torch.randn(MAX_COLUMNS, HIDDEN),
        "tables.row.weight": torch.randn(HIDDEN, HIDDEN) / HIDDEN**0.5,
        "tables.row.bias": torch.zeros(HIDDEN),
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="made if it does not exist")
    args = parser.parse_args()
    if not args.folder.exists():
        make_checkpoint(args.folder)
    params = SamplingParams(temperature=0, max_tokens=16)
    prompts = [
        {"prompt": "<table>\nWhat grows?", "multi_modal_data": {"table": each}}
        for each in (COLUMNS, CSV)
    ]
    prompts.append({**prompts[0], "mm_processor_kwargs": {"max_rows": 1}})
    question = {"type": "text", "text": "What grows?"}
    with LLM(str(args.folder)) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        content = [{"type": "table", "table": CSV}, question]
        outputs += llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
    for output in outputs:
        print(f"{len(output.prompt_token_ids)} tokens -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
