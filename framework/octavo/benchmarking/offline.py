"""An engine in this process: tokens a second of many requests, or the seconds of one batch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.benchmarking.summary import Spread, spread
from octavo.benchmarking.workload import Ask, Lengths, random_ids, read_asks
from octavo.config.checks import check_range
from octavo.errors import ConfigError, RequestFailedError
from octavo.params import SamplingParams
from octavo.wording import counted

if TYPE_CHECKING:
    from octavo.frontend.llm import LLM

WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputBench:
    """Many requests at once."""

    num_prompts: int = 200
    """Requests in all."""
    input_len: int = 512
    """Tokens of a random prompt."""
    output_len: int = 128
    """Tokens of an answer; for a file's prompts at most so many, where a line does not say."""
    range_ratio: float = 0.0
    """Lengths are drawn from (1 - ratio) to (1 + ratio) times the length."""
    prompts: str | None = None
    """A JSONL file with "prompt" in each line, instead of random prompts."""
    detokenize: bool = True
    """Make text of the tokens, as a server does."""
    prompt_seed: int = 0
    """What random prompts are made by."""

    def __post_init__(self) -> None:
        check_range("num_prompts", self.num_prompts, 1)
        self.lengths()

    def lengths(self) -> Lengths:
        """Tokens of prompts and answers."""
        return Lengths(
            input_len=self.input_len, output_len=self.output_len, range_ratio=self.range_ratio
        )

    def __str__(self) -> str:
        """In words."""
        requests = counted(self.num_prompts, "request")
        return f"{requests} at once, {self.prompts or self.lengths()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBench:
    """One batch again and again."""

    batch_size: int = 8
    """Requests at a time."""
    input_len: int = 32
    """Tokens of a random prompt."""
    output_len: int = 128
    """Tokens of an answer."""
    num_iters: int = 10
    """Batches that are measured."""
    num_warmups: int = 2
    """Batches before them, in no figure."""
    prompt_seed: int = 0
    """What random prompts are made by."""

    def __post_init__(self) -> None:
        check_range("batch_size", self.batch_size, 1)
        check_range("num_iters", self.num_iters, 1)
        check_range("num_warmups", self.num_warmups, 0)
        self.lengths()

    def lengths(self) -> Lengths:
        """Tokens of prompts and answers."""
        return Lengths(input_len=self.input_len, output_len=self.output_len)

    def __str__(self) -> str:
        """In words."""
        batches = counted(self.num_iters, "batch", "batches")
        requests = counted(self.batch_size, "request")
        return f"{batches} of {requests}, {self.lengths()}, after {self.num_warmups} to warm up"


def throughput(llm: LLM, bench: ThroughputBench, *, shown: bool = False) -> dict[str, Any]:
    """Requests and tokens a second; with a progress bar if ``shown``."""
    rng = random.Random(bench.prompt_seed)
    if bench.prompts is not None:
        asks = read_asks(Path(bench.prompts), bench.num_prompts, bench.output_len)
        if any(ask.is_chat for ask in asks):
            raise ConfigError(f"{bench.prompts} has messages; only prompts are taken here")
    else:
        asks = list(random_ids(bench.num_prompts, bench.lengths(), _ids(llm), rng))
    is_random = bench.prompts is None
    _run(llm, asks[:2], most=WARMUP_TOKENS, detokenize=bench.detokenize, ignore_eos=is_random)
    seconds, num_input, num_output = _run(
        llm, asks, detokenize=bench.detokenize, ignore_eos=is_random, shown=shown
    )
    return {
        "requests": len(asks),
        "seconds": seconds,
        "input_tokens": num_input,
        "output_tokens": num_output,
        "request_throughput": len(asks) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
    }


def latency(
    llm: LLM, bench: LatencyBench, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Seconds of a batch from its prompts to its last token; ``tell`` hears how far it is."""
    rng = random.Random(bench.prompt_seed)
    ids = _ids(llm)
    seconds: list[float] = []
    count = bench.num_warmups + bench.num_iters
    for number in range(count):
        took_before = f", the last took {seconds[-1] * 1000:,.0f} ms" if seconds else ""
        tell(f"batch {number + 1} of {count}{took_before}")
        # Other prompts each time: none is in the prefix cache.
        asks = list(random_ids(bench.batch_size, bench.lengths(), ids, rng))
        took, _, _ = _run(llm, asks, detokenize=False, ignore_eos=True)
        if number >= bench.num_warmups:
            seconds.append(took)
    values = spread(seconds)
    assert values is not None  # num_iters is 1 at least
    return {"batches": seconds, "latency_ms": values}


def _run(
    llm: LLM,
    asks: Sequence[Ask],
    *,
    detokenize: bool,
    ignore_eos: bool,
    most: int | None = None,
    shown: bool = False,
) -> tuple[float, int, int]:
    """Seconds, prompt tokens and output tokens."""
    params = [
        SamplingParams(
            temperature=0.0,
            max_tokens=min(ask.output_len, most or ask.output_len),
            ignore_eos=ignore_eos,
            detokenize=detokenize,
        )
        for ask in asks
    ]
    prompts: list[Any] = [
        ask.prompt if isinstance(ask.prompt, str) else {"prompt_token_ids": ask.prompt}
        for ask in asks
    ]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=shown)
    seconds = time.perf_counter() - began
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        requests = counted(len(outputs), "request")
        raise RequestFailedError(f"{len(failed)} of {requests} failed: {failed[0]}")
    return (
        seconds,
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(output.outputs[0].token_ids) for output in outputs),
    )


def _ids(llm: LLM) -> Sequence[int]:
    """All ids but those at both ends, where special tokens are."""
    size = llm.ready.vocab_size
    return range(min(16, size // 2), size - size // 16)


__all__ = ["LatencyBench", "Spread", "ThroughputBench", "latency", "throughput"]
