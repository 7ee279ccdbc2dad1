"""What HTTP costs: streams of a server against LLM on the same prompts, in turns (A B B A).

    python -m benchmarks.http_streaming cpu                    # octavo/tiny, both side by side
    python -m benchmarks.http_streaming gpu --models 1b,8b     # dummy weights, one engine at a time
    python -m benchmarks.http_streaming gpu --vllm             # and vLLM's server, same client

Every engine is a process of its own, and so is the client, whose share of a core is in the output.
On a GPU each server also gets requests at half of the rate that the first one has answered, as a
Poisson process: the time to the first token at half load. One line of JSON each, then a table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.shapes import SHAPES, write_model
from benchmarks.engine_process import environment
from octavo.benchmarking.processes import num_processes, run_load
from octavo.benchmarking.summary import summarize
from octavo.benchmarking.workload import Ask, Endpoint, arrivals, timed_requests
from octavo.client import Address, ServerError, get_json, parse_address

START_SECONDS = 300.0
QUESTIONS = (
    "What is the capital of {}?",
    "Tell me about {}.",
    "Which river flows through {}?",
    "Where is {}?",
)
PLACES = ("France", "Japan", "Peru", "Kenya", "Norway", "Egypt", "Cuba", "Nepal")
ASKED = {"cpu": 0.90, "1b": 0.85, "8b": 0.95, "tiny": 0.0}
"""The least share of LLM's tokens a second that streaming is to reach; tiny is for a try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests that every engine gets."""

    name: str
    asks: list[Ask]
    endpoint: Endpoint
    options: dict[str, Any]
    """The engine's, as keywords of LLM; flags of servers are made of them."""
    serve_flags: tuple[str, ...] = ()
    """More, of ``octavo serve`` alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the requests."""

    tokens: int
    seconds: float
    ttft_p99_ms: float | None = None
    client_share: float | None = None

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def cpu_work(requests: int, max_tokens: int) -> Work:
    asked = [question.format(place) for question in QUESTIONS for place in PLACES]
    asks = [
        Ask(prompt=[{"role": "user", "content": asked[number % len(asked)]}], output_len=max_tokens)
        for number in range(requests)
    ]
    options = {"model": "octavo/tiny", "dtype": "float32", "num_threads": 1}
    return Work(name="cpu", asks=asks, endpoint="chat", options=options)


def gpu_work(model: str, requests: int, input_len: int, max_tokens: int, folder: Path) -> Work:
    write_model(SHAPES[model], folder)
    write_tokenizer(SHAPES[model].vocab_size, folder)
    rng = random.Random(model)
    ids = range(300, SHAPES[model].vocab_size)  # above those of single bytes
    asks = [
        Ask(prompt=rng.choices(ids, k=input_len), output_len=max_tokens) for _ in range(requests)
    ]
    options = {
        "model": str(folder),
        "load_format": "dummy",
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": False,
    }
    return Work(name=model, asks=asks, endpoint="completions", options=options)


def write_tokenizer(vocab_size: int, folder: Path) -> None:
    """Byte-level, every id a word of its own: making text of tokens takes what it always takes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"Ġw{number}" for number in range(vocab_size - len(words))]
    model = models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def serve_offline(job: dict[str, Any]) -> None:
    """The process of LLM: a pass over the requests for each line that comes."""
    from octavo import LLM, SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        for length in job["lengths"]
    ]
    with LLM(**job["options"]) as llm:
        print("ready", flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            if job["chat"]:
                outputs = llm.chat(job["prompts"], params, use_tqdm=False)
            else:
                prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
                outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - began
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


@contextmanager
def offline(work: Work) -> Iterator[Callable[[], Run]]:
    """LLM in a process; the function that it gives makes a pass over the requests."""
    job = {
        "options": work.options,
        "chat": work.endpoint == "chat",
        "prompts": [ask.prompt for ask in work.asks],
        "lengths": [ask.output_len for ask in work.asks],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.http_streaming", "offline", file.name]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            expect(child.stdout.readline(), "ready")

            def run() -> Run:
                print(file=child.stdin, flush=True)
                return Run(**json.loads(child.stdout.readline()))

            run()  # warm
            yield run
        finally:
            child.stdin.close()
            child.wait(60)


@contextmanager
def server(
    work: Work, command: list[str], port: int, env: Mapping[str, str] | None = None
) -> Iterator[Callable[[float | None], Run]]:
    """A server; the function that it gives sends the requests, all at once or at a rate."""
    address = parse_address(f"http://127.0.0.1:{port}")
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    try:
        wait_for(address, child)
        model = get_json(address, "/v1/models")["data"][0]["id"]

        def run(rate: float | None = None) -> Run:
            times = arrivals(len(work.asks), rate or float("inf"), random.Random(0))
            planned = timed_requests(
                work.asks, times, endpoint=work.endpoint, model=model, ignore_eos=True, extra={}
            )
            outcomes = run_load(
                address,
                planned,
                max_concurrency=None,
                processes=num_processes(len(planned)),
            )
            summary = summarize([r for o in outcomes for r in o.records], {})
            expect(summary.errors, {})
            assert summary.ttft_ms is not None
            return Run(
                summary.output_tokens,
                summary.duration_seconds,
                summary.ttft_ms.p99,
                max(outcome.cpu_share for outcome in outcomes),
            )

        run()  # warm
        yield run
    finally:
        child.terminate()
        child.wait(60)


def octavo_command(work: Work, port: int) -> list[str]:
    start = [sys.executable, "-c", "from octavo.cli import main; raise SystemExit(main())"]
    return [*start, "serve", *flags(work), f"--port={port}", "--no-access-log", *work.serve_flags]


def vllm_command(work: Work, port: int) -> list[str]:
    model, *rest = flags(work)
    start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return [*start, *rest, f"--port={port}", "--disable-uvicorn-access-log"]


def flags(work: Work) -> list[str]:
    made = [str(work.options["model"])]
    for name, value in work.options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            made.append(f"--{flag}" if value else f"--no-{flag}")
        elif name != "model":
            made.append(f"--{flag}={value}")
    return made


def wait_for(address: Address, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            get_json(address, "/v1/models", timeout=5.0)
            return
        except ServerError:
            if child.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def expect(found: object, wanted: object) -> None:
    shown = found.strip() if isinstance(found, str) else found
    if shown != wanted:
        raise RuntimeError(f"expected {wanted!r}, got {shown!r}")


def head_of(path: str, length: int) -> bytes:
    """A request's first lines; its body is JSON of that many bytes."""
    kind = f"content-type: application/json\r\ncontent-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n\r\n".encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tell(work: Work, engine: str, run: Run, load: str = "full") -> Run:
    line = {"work": work.name, "engine": engine, "load": load, "tokens_per_second": run.rate}
    if run.ttft_p99_ms is not None:
        line |= {"ttft_p99_ms": run.ttft_p99_ms, "client_share": run.client_share}
    print(json.dumps(line), flush=True)
    return run


def on_cpu(work: Work, rounds: int) -> dict[str, list[Run]]:
    """Both engines at hand, a pass each in turns."""
    runs: dict[str, list[Run]] = {"LLM": [], "octavo serve": []}
    port = free_port()
    with offline(work) as ours, server(work, octavo_command(work, port), port) as served:
        engines: dict[str, Callable[[], Run]] = {"LLM": ours, "octavo serve": lambda: served(None)}
        for turn in range(rounds):
            for name in sorted(engines, reverse=bool(turn % 2)):
                runs[name].append(tell(work, name, engines[name]()))
    return runs


def on_gpu(
    work: Work, rounds: int, *, once: bool, with_vllm: bool, vllm_path: str | None
) -> dict[str, list[Run]]:
    """An engine after the other, each twice (or once) and with the whole memory."""
    runs: dict[str, list[Run]] = {}
    servers = {"octavo serve": octavo_command} | ({"vllm serve": vllm_command} if with_vllm else {})
    half_rate: float | None = None
    order = ["LLM", *servers]
    for name in order if once else [*order, *reversed(order)]:
        made = runs.setdefault(name, [])
        if name == "LLM":
            with offline(work) as ours:
                made += [tell(work, name, ours()) for _ in range(rounds)]
            continue
        port = free_port()
        env = environment(name.split()[0], vllm_path)
        with server(work, servers[name](work, port), port, env) as served:
            made += [tell(work, name, served(None)) for _ in range(rounds)]
            half_rate = half_rate or len(work.asks) / made[0].seconds / 2
            half = tell(work, name, served(half_rate), "half")
            runs.setdefault(f"{name}, half load", []).append(half)
    return runs


def report(work: Work, runs: dict[str, list[Run]]) -> bool:
    """Print the medians; returns whether what is asked holds."""
    base = statistics.median(run.rate for run in runs["LLM"])
    for name, made in runs.items():
        rate = statistics.median(run.rate for run in made)
        times = [run.ttft_p99_ms for run in made if run.ttft_p99_ms is not None]
        first = f"  p99 TTFT {statistics.median(times):8.1f} ms" if times else ""
        print(f"{work.name:4} {name:24} {rate:10.0f} tokens/s {rate / base:7.1%} of LLM{first}")
    share = statistics.median(run.rate for run in runs["octavo serve"]) / base
    held = share >= ASKED[work.name]
    print(f"{work.name:4} asked {ASKED[work.name]:.0%}: {'holds' if held else 'FAILS'}")
    return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("--models", default="1b,8b")
    parser.add_argument("--requests", type=int, help="at a time; default: 32 on cpu, 256 on gpu")
    parser.add_argument("--input-len", type=int, default=256, help="on gpu")
    parser.add_argument("--max-tokens", type=int, help="default: 128 on cpu, 512 on gpu")
    parser.add_argument("--rounds", type=int, help="default: 4 on cpu, 2 on gpu (of each start)")
    parser.add_argument(
        "--serve-flag", action="append", default=[], help="of octavo serve, as --api-workers=4"
    )
    parser.add_argument("--once", action="store_true", help="on gpu: start each engine once")
    parser.add_argument("--vllm", action="store_true", help="on gpu: vLLM's server, too")
    parser.add_argument("--vllm-path", help="folder to import vLLM from")
    if sys.argv[1:2] == ["offline"]:
        serve_offline(json.loads(Path(sys.argv[2]).read_text()))
        return 0
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.device == "cpu":
        work = cpu_work(args.requests or 32, args.max_tokens or 128)
        work = replace(work, serve_flags=tuple(args.serve_flag))
        return 0 if report(work, on_cpu(work, args.rounds or 4)) else 1
    held = True
    for model in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            work = gpu_work(
                model, args.requests or 256, args.input_len, args.max_tokens or 512, Path(folder)
            )
            work = replace(work, serve_flags=tuple(args.serve_flag))
            runs = on_gpu(
                work,
                args.rounds or 2,
                once=args.once,
                with_vllm=args.vllm,
                vllm_path=args.vllm_path,
            )
            held &= report(work, runs)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
