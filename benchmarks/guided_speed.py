"""What a JSON schema costs a token: the same requests with and without it, in turns (A B B A).

    python -m benchmarks.guided_speed --model 8b --engines octavo,vllm     # dummy weights, on a GPU
    python -m benchmarks.guided_speed --model tiny                         # a try

Every engine is a process of its own. What is compiled at first use is not counted: both kinds of
requests run once before. The time to the first token is that of a pass of one token a request.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bpe_tokenizer import write_bpe_tokenizer
from benchmarks.compare.shapes import SHAPES, write_model
from benchmarks.engine_process import measured

PROMPT_TOKENS = 128
SCHEMA = {
    "type": "array",
    "minItems": 1000,  # so that no answer is complete before its last token
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 32},
            "kind": {"enum": ["customer", "supplier", "employee"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "score": {"type": "number"},
            "is_active": {"type": "boolean"},
            "address": {
                "type": "object",
                "properties": {
                    "street": {"type": "string", "maxLength": 40},
                    "code": {"type": "string", "pattern": "^[0-9]{5}$"},
                },
                "required": ["street", "code"],
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
        },
        "required": ["name", "kind", "age", "score", "is_active", "address", "tags"],
        "additionalProperties": False,
    },
}
PASSES = ("free", "guided", "guided", "free")


Run = Callable[[list[list[int]], int, bool], int]
"""Takes prompts, tokens for each, and whether they are guided; returns how many came."""


def run_of(llm: Any, params: Any, constraint: dict[str, Any]) -> Run:
    """Both engines have the same calls, but for the constraint."""

    def run(prompts: list[list[int]], num_tokens: int, guided: bool) -> int:
        asked = params(
            temperature=1.0,
            seed=0,
            max_tokens=num_tokens,
            ignore_eos=not guided,
            **(constraint if guided else {}),
        )
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False
        )
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


def make_octavo(folder: str, backend: str) -> Run:
    from octavo import LLM, GuidedParams, SamplingParams

    llm = LLM(folder, load_format="dummy", max_model_len=8192, enable_prefix_caching=False)
    return run_of(llm, SamplingParams, {"guided": GuidedParams(json=SCHEMA, backend=backend)})


def make_vllm(folder: str, backend: str) -> Run:
    """With its default backend: ``backend`` is octavo's."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(model=folder, load_format="dummy", max_model_len=8192, enable_prefix_caching=False)
    constraint = {"structured_outputs": StructuredOutputsParams(json=SCHEMA)}
    return run_of(llm, SamplingParams, constraint)


ENGINES = {"octavo": make_octavo, "vllm": make_vllm}


def measure(job: dict[str, Any]) -> None:
    """The process of one engine; prints a line of JSON for each pass."""
    run = ENGINES[job["engine"]](job["folder"], job["backend"])
    ids = range(300, job["vocab_size"])

    def timed(kind: str, num_tokens: int, salt: object) -> tuple[float, int]:
        rng = random.Random(f"{salt}")
        prompts = [rng.choices(ids, k=PROMPT_TOKENS) for _ in range(job["requests"])]
        began = time.perf_counter()
        count = run(prompts, num_tokens, kind == "guided")
        return time.perf_counter() - began, count

    for kind in ("free", "guided"):
        timed(kind, job["tokens"], "warm")
    for number in range(job["rounds"]):
        for place, kind in enumerate(PASSES):
            first, _ = timed(kind, 1, (number, place, "first"))
            whole, count = timed(kind, job["tokens"], (number, place))
            line = {"kind": kind, "first": first, "token": whole / count, "tokens": count}
            print(json.dumps(line), flush=True)


def report(engine: str, lines: list[dict[str, Any]]) -> None:
    """Medians of both kinds, and what lies between them."""
    found = {
        (kind, what): statistics.median(line[what] for line in lines if line["kind"] == kind)
        for kind in ("free", "guided")
        for what in ("first", "token")
    }
    slower = found["guided", "token"] / found["free", "token"] - 1
    later = (found["guided", "first"] - found["free", "first"]) * 1000
    print(
        f"{engine:7} {found['free', 'token'] * 1e6:8.1f} us a token free, "
        f"{found['guided', 'token'] * 1e6:8.1f} guided: {slower:+.1%}; "
        f"first token {later:+.1f} ms"
    )


def main() -> int:
    if sys.argv[1:2] == ["measure"]:
        measure(json.loads(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="8b", choices=sorted(SHAPES))
    parser.add_argument("--engines", default="octavo", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--backend", default="auto", help="octavo's")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vllm-path", help="folder to import vLLM from")
    parser.add_argument("--out", type=Path, help="JSON file of all passes")
    args = parser.parse_args()
    passes: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        shape = SHAPES[args.model]
        folder = write_model(shape, Path(scratch, args.model))
        write_bpe_tokenizer(folder, vocab_size=shape.vocab_size)
        for engine in args.engines.split(","):
            job = {
                "engine": engine,
                "folder": str(folder),
                "vocab_size": shape.vocab_size,
                "backend": args.backend,
                "requests": args.requests,
                "tokens": args.tokens,
                "rounds": args.rounds,
            }
            passes[engine] = measured("benchmarks.guided_speed", job, args.vllm_path)
            if args.out:
                args.out.write_text(json.dumps(passes))
    for engine, lines in passes.items():
        report(engine, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
