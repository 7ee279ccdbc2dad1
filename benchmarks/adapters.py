"""What LoRA adapters cost a decode step, and what loading one costs those who read along.

    python -m benchmarks.adapters --model 8b --engines octavo,vllm    # on a GPU
    python -m benchmarks.adapters --model tiny --device cpu --adapters 2 --rank 4 --vocab 512

Every row is of a batch of requests over so many different adapters of one rank on all linears;
0 are none, on an engine that could take some, and "off" is an engine without. Weights are made up,
and nothing is merged. A step is what 128 more tokens take, by 128.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare.shapes import SHAPES, Shape, write_model
from benchmarks.engine_process import measured

MODULE = "benchmarks.adapters"
CONTEXT, SHORT, LONG = 256, 16, 144


def write_adapter(folder: Path, shape: Shape, rank: int, number: int) -> None:
    """Random ones on every linear, as PEFT would save them."""
    import torch
    from safetensors.torch import save_file

    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    linears = {
        "self_attn.q_proj": (hidden, heads),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (heads, hidden),
        "mlp.gate_proj": (hidden, shape.intermediate_size),
        "mlp.up_proj": (hidden, shape.intermediate_size),
        "mlp.down_proj": (shape.intermediate_size, hidden),
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(number)

    def draw(*size: int) -> torch.Tensor:
        drawn = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
        return (drawn * 0.01).cpu()

    tensors = {}
    for layer in range(shape.num_layers):
        for name, (inputs, outputs) in linears.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{module}.lora_A.weight"] = draw(rank, inputs)
            tensors[f"{module}.lora_B.weight"] = draw(outputs, rank)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": [name.split(".")[1] for name in linears],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def options(job: dict[str, Any]) -> dict[str, Any]:
    found = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 2048}
    found["enable_prefix_caching"] = False
    if job["lora"]:
        found |= {"enable_lora": True, "max_loras": job["adapters"], "max_lora_rank": job["rank"]}
    return found


def measure(job: dict[str, Any]) -> None:
    """The process of one engine; prints a line of JSON for each number of adapters."""
    if job["engine"] == "vllm":
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest

        more = {"max_cpu_loras": job["adapters"]} if job["lora"] else {}
    else:
        from octavo import LLM, LoRARequest, SamplingParams

        more = {"device": job["device"]}
    llm = LLM(model=job["folder"], **options(job), **more)
    rng = random.Random(0)

    def seconds(num_adapters: int, num_tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": rng.choices(range(10, job["vocab"]), k=CONTEXT)}
            for _ in range(job["requests"])
        ]
        named = None
        if num_adapters:
            named = [request(i % num_adapters) for i in range(job["requests"])]
        params = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        began = time.perf_counter()
        llm.generate(prompts, params, lora_request=named, use_tqdm=False)
        return time.perf_counter() - began

    def request(number: int) -> Any:
        path = f"{job['folder']}/adapter{number}"
        return LoRARequest(f"adapter{number}", number + 1, path)

    for number in (0, *dict.fromkeys((1, 8, job["adapters"]))) if job["lora"] else (0,):
        if number > job["adapters"]:
            continue
        began = time.perf_counter()
        seconds(number, 8)
        first = time.perf_counter() - began
        short = min(seconds(number, SHORT) for _ in range(job["rounds"]))
        long = min(seconds(number, LONG) for _ in range(job["rounds"]))
        step = (long - short) / (LONG - SHORT) * 1000
        kind = number if job["lora"] else "off"
        print(json.dumps({"adapters": kind, "step_ms": step, "first": first}), flush=True)


async def stalls(job: dict[str, Any]) -> None:
    """Octavo's longest wait of streams for a token, without and with one of four being loaded."""
    from octavo import AsyncLLM, LoRARequest, SamplingParams

    llm = AsyncLLM(job["folder"], **options(job), device=job["device"])
    rng = random.Random(0)

    async def longest(num_tokens: int, named: LoRARequest | None = None) -> tuple[float, int]:
        prompt = {"prompt_token_ids": rng.choices(range(10, job["vocab"]), k=CONTEXT)}
        params = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        gap, last, count = 0.0, 0.0, 0
        async for output in llm.generate(prompt, params, lora_request=named):
            now = time.perf_counter()
            gap = max(gap, now - last) if last else 0.0
            last, count = now, len(output.outputs[0].token_ids)
        return gap * 1000, count

    async def streams(num_tokens: int) -> float:
        every = await asyncio.gather(*(longest(num_tokens) for _ in range(job["requests"])))
        return max(gap for gap, _ in every)

    async def one_more(number: int) -> None:
        await asyncio.sleep(0.3)
        await longest(
            4, LoRARequest(f"adapter{number}", lora_path=f"{job['folder']}/adapter{number}")
        )

    await streams(LONG)
    await one_more(0)
    alone = await streams(3 * LONG)
    loads = []
    for number in (1, 2, 3):
        loads.append((await asyncio.gather(streams(3 * LONG), one_more(number)))[0])
    print(json.dumps({"alone_ms": alone, "loading_ms": loads}), flush=True)
    llm.close()


def main() -> int:
    if sys.argv[1:2] == ["measure"]:
        job = json.loads(sys.argv[2])
        if job["engine"] == "stalls":
            asyncio.run(stalls(job))
        else:
            measure(job)
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="8b", choices=[*SHAPES, "tiny"])
    parser.add_argument("--engines", default="octavo", help="of octavo, vllm, stalls")
    parser.add_argument("--device", default="auto", help="octavo's")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=128000, help="prompts have tokens below it")
    parser.add_argument("--vllm-path", help="folder to import vLLM from")
    args = parser.parse_args()
    shape = replace(SHAPES["1b"], num_layers=2, vocab_size=512) if args.model == "tiny" else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(shape or SHAPES[args.model], Path(scratch) / "model")
        for number in range(args.adapters):
            target = folder / f"adapter{number}"
            write_adapter(target, shape or SHAPES[args.model], args.rank, number)
        for engine in args.engines.split(","):
            job = {**vars(args), "engine": engine, "folder": str(folder)}
            if engine == "stalls":
                print(
                    engine, json.dumps(measured(MODULE, {**job, "lora": True}, None)[0]), flush=True
                )
                continue
            lines = [
                line
                for lora in (False, True)
                for line in measured(MODULE, {**job, "lora": lora}, args.vllm_path)
            ]
            base = lines[0]["step_ms"]
            for line in lines:
                slower = line["step_ms"] / base - 1
                print(
                    f"{engine:7} adapters {line['adapters']!s:>4} {line['step_ms']:8.3f} ms a step "
                    f"{slower:+7.1%}   first call {line['first']:.2f} s",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
