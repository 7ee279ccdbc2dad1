"""Requests with an image each, by second: a Qwen2-VL of 7B with made-up weights.

    python -m benchmarks.image_throughput --engines octavo,vllm --vllm-path FOLDER     # on a GPU
    python -m benchmarks.image_throughput --shape tiny --device cpu --requests 4       # a try

Every engine is a process of its own and gets the same Pillow images, each another one, so that
reading, resizing and sending them counts. The engines' defaults hold otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.engine_process import measured

SPECIAL = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|vision_pad|>": 151654,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
}
VISION = {"in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "7b": (
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4},
    ),
    "tiny": (
        {
            "hidden_size": 512,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        {"depth": 2, "embed_dim": 64, "hidden_size": 512, "num_heads": 2, "mlp_ratio": 2},
    ),
}
PROMPT = (*range(1000, 1032), 151652, 151655, 151653, *range(2000, 2016))
Run = Callable[[int, int], int]
"""Takes the first image's number and how many requests; returns how many tokens came."""


def write_folder(folder: Path, shape: str) -> None:
    """A model folder without weights."""
    text, vision = SHAPES[shape]
    config = {
        **text,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "dtype": "bfloat16",
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": False,
        "bos_token_id": SPECIAL["<|endoftext|>"],
        "eos_token_id": SPECIAL["<|im_end|>"],
        "vision_start_token_id": SPECIAL["<|vision_start|>"],
        "vision_end_token_id": SPECIAL["<|vision_end|>"],
        "image_token_id": SPECIAL["<|image_pad|>"],
        "video_token_id": SPECIAL["<|video_pad|>"],
        "vision_config": {"model_type": "qwen2_vl", **VISION, **vision},
    }
    processor = {
        **VISION,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "merge_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"unused{number}" for number in range(151643 - len(letters)))]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {place: name for name, place in SPECIAL.items()}
    last = max(SPECIAL.values())
    tokenizer.add_special_tokens([names.get(i, f"<|{i}|>") for i in range(151643, last + 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder)


def picture(number: int, side: int) -> Any:
    """An image of its own for each number."""
    import numpy as np
    from PIL import Image

    small = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)


def measure(job: dict[str, Any]) -> None:
    """The process of one engine; prints a line of JSON for each pass."""
    if job["engine"] == "vllm":
        from vllm import LLM, SamplingParams

        options: dict[str, Any] = {"model": job["folder"], "limit_mm_per_prompt": {"image": 1}}
    else:
        from octavo import LLM, SamplingParams

        options = {name: job[name] for name in ("device", "engine_process")}
        options["model"] = job["folder"]
    llm = LLM(load_format="dummy", max_model_len=4096, **options)
    params = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True)
    requests = job["requests"]
    for number in range(1 + job["rounds"]):
        images = [picture(number * requests + i, job["side"]) for i in range(requests)]
        prompts = [
            {"prompt_token_ids": list(PROMPT), "multi_modal_data": {"image": image}}
            for image in images
        ]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        count = sum(len(output.outputs[0].token_ids) for output in outputs)
        assert count == requests * job["tokens"], count
        if number:  # the first warms up
            print(json.dumps({"requests_per_second": requests / seconds}), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["measure"]:
        measure(json.loads(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="octavo", help="of octavo, vllm")
    parser.add_argument("--shape", default="7b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="auto", help="octavo's")
    parser.add_argument(
        "--engine-process", action=argparse.BooleanOptionalAction, help="octavo's, as LLM takes it"
    )
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--side", type=int, default=1024, help="pixels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm-path", help="folder to import vLLM from")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_folder(Path(scratch), args.shape)
        for engine in args.engines.split(","):
            job = {**vars(args), "engine": engine, "folder": scratch}
            lines = measured("benchmarks.image_throughput", job, args.vllm_path)
            found = [each["requests_per_second"] for each in lines]
            raw = " ".join(f"{each:.2f}" for each in found)
            print(f"{engine:7} {statistics.median(found):8.2f} requests a second ({raw})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
