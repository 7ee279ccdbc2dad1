"""A load on a server, from its address to the figures."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from octavo.benchmarking.load import TimedRequest
from octavo.benchmarking.processes import BenchError, Outcome, num_processes, run_load
from octavo.benchmarking.records import Record
from octavo.benchmarking.summary import Summary, summarize
from octavo.benchmarking.workload import (
    Ask,
    Lengths,
    arrivals,
    random_ids,
    random_text,
    random_texts,
    read_asks,
    timed_requests,
)
from octavo.client import Address, ServerError, get_json, post_json
from octavo.config.checks import check_choice, check_range
from octavo.errors import ConfigError
from octavo.frontend.progress import ProgressBar
from octavo.wording import counted

SAMPLE_SYLLABLES = 4000
"""Length of the text whose token ids random prompts are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench:
    """What is sent, how fast, and to which route."""

    endpoint: Literal["completions", "chat"] = "completions"
    """The route that is asked."""
    model: str | None = None
    """The name that requests carry; default: the first that the server lists."""
    num_prompts: int = 200
    """Requests in all."""
    request_rate: float = math.inf
    """Requests a second, as a Poisson process; "inf" sends all at once."""
    max_concurrency: int | None = None
    """Requests under way at most; the others wait unsent, which no figure counts."""
    input_len: int = 512
    """Tokens of a random prompt."""
    output_len: int = 128
    """Tokens of an answer; for a file's prompts at most so many, where a line does not say."""
    range_ratio: float = 0.0
    """Lengths are drawn from (1 - ratio) to (1 + ratio) times the length."""
    prompts: str | None = None
    """A JSONL file with "prompt" or "messages" in each line, instead of random prompts."""
    ignore_eos: bool | None = None
    """Answers go on to their length; a field of vLLM's and ours. Default: for random prompts."""
    num_warmups: int = 4
    """Requests before the measured ones, in no figure."""
    vocab_size: int | None = None
    """Random prompts are made of ids below it; default: of those that the server's /tokenize
    gives for a text, or of text if it has no such path."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Fields that are added to each request."""
    processes: int | None = None
    """Processes of the client; default: by the number of streams at a time."""
    seed: int = 0
    """What prompts and arrivals are made by."""

    def __post_init__(self) -> None:
        check_choice("endpoint", self.endpoint, ("completions", "chat"))
        check_range("num_prompts", self.num_prompts, 1)
        check_range("num_warmups", self.num_warmups, 0)
        for name in ("max_concurrency", "processes"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 1)
        if self.vocab_size is not None:
            check_range("vocab_size", self.vocab_size, 32)
        if not self.request_rate > 0:
            raise ConfigError(f"request_rate={self.request_rate:g} must be above 0, or inf")
        self.lengths()

    def lengths(self) -> Lengths:
        """Tokens of prompts and answers."""
        return Lengths(
            input_len=self.input_len, output_len=self.output_len, range_ratio=self.range_ratio
        )

    def __str__(self) -> str:
        """In words."""
        rate = "at once" if math.isinf(self.request_rate) else f"at {self.request_rate:g} a second"
        most = f", {self.max_concurrency:,} under way at most" if self.max_concurrency else ""
        requests = counted(self.num_prompts, "request")
        return f"{requests} {rate}{most}, {self.prompts or self.lengths()}, to {self.endpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeResult:
    """What a server did under a load."""

    address: Address
    bench: ServeBench
    model: str
    records: list[Record]
    summary: Summary
    num_processes: int
    cpu_share: float
    """The part of a core that the client's busiest process used."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it; a request's times are in milliseconds."""
        bench = asdict(self.bench) | {"request_rate": str(self.bench.request_rate)}
        return {
            "url": str(self.address),
            "model": self.model,
            "options": bench,
            "summary": self.summary.as_dict(),
            "client": {"processes": self.num_processes, "cpu_share": self.cpu_share},
            "requests": [_request(record) for record in self.records],
        }


def run_serve_bench(
    address: Address, bench: ServeBench, goodput: dict[str, float], *, shown: bool
) -> ServeResult:
    """Ask the server for its model, warm it up, and measure; ``shown``: with a progress bar."""
    model = bench.model or _first_model(address)
    rng = random.Random(bench.seed)
    asks = _asks(address, bench, model, rng)
    times = arrivals(bench.num_prompts, bench.request_rate, rng)
    ignore_eos = bench.prompts is None if bench.ignore_eos is None else bench.ignore_eos

    def timed(some: Sequence[Ask], offsets: Sequence[float]) -> list[TimedRequest]:
        return timed_requests(
            some,
            offsets,
            endpoint=bench.endpoint,
            model=model,
            ignore_eos=ignore_eos,
            extra=bench.extra_body,
        )

    warmups, measured = asks[: bench.num_warmups], asks[bench.num_warmups :]
    if warmups:
        few = bench.max_concurrency or len(warmups)
        requests = timed(warmups, [0.0] * len(warmups))
        _check(run_load(address, requests, max_concurrency=few, processes=1))
    processes = bench.processes or num_processes(bench.max_concurrency or bench.num_prompts)
    with ProgressBar(bench.num_prompts, shown=shown) as bar:
        outcomes = run_load(
            address,
            timed(measured, times),
            max_concurrency=bench.max_concurrency,
            processes=processes,
            bar=bar,
        )
    records = sorted((r for o in outcomes for r in o.records), key=lambda r: r.number)
    return ServeResult(
        address=address,
        bench=bench,
        model=model,
        records=records,
        summary=summarize(records, goodput),
        num_processes=len(outcomes),
        cpu_share=max(outcome.cpu_share for outcome in outcomes),
    )


def _asks(address: Address, bench: ServeBench, model: str, rng: random.Random) -> list[Ask]:
    """The prompts of the warm-up and then those that are measured, none of them twice."""
    count = bench.num_warmups + bench.num_prompts
    if bench.prompts is not None:
        asks = read_asks(Path(bench.prompts), bench.num_prompts, bench.output_len)
        return [asks[number % len(asks)] for number in range(bench.num_warmups)] + asks
    if bench.endpoint == "chat":
        return list(random_texts(count, bench.lengths(), rng))
    ids = _ids(address, bench, model, rng)
    if ids is None:
        return list(random_texts(count, bench.lengths(), rng))
    return list(random_ids(count, bench.lengths(), ids, rng))


def _ids(
    address: Address, bench: ServeBench, model: str, rng: random.Random
) -> Sequence[int] | None:
    """Ids that a prompt may have; None where the server does not tell."""
    if bench.vocab_size is not None:
        return range(16, bench.vocab_size)
    text = random_text(SAMPLE_SYLLABLES, rng)
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        reply = post_json(address, "/tokenize", body, timeout=30.0)
    except ServerError:
        return None
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return None
    return sorted(set(tokens)) or None


def _first_model(address: Address) -> str:
    reply = get_json(address, "/v1/models")
    try:
        return str(reply["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"{address} lists no model; give --model") from None


def _check(outcomes: list[Outcome]) -> None:
    """A load of which even the warm-up fails would only measure how fast a server refuses."""
    errors = [record.error for outcome in outcomes for record in outcome.records if record.error]
    if errors:
        raise BenchError(f"a request of the warm-up failed: {errors[0]}")


def _request(record: Record) -> dict[str, Any]:
    return {
        "ttft_ms": record.ttft * 1000,
        "tpot_ms": None if record.tpot is None else record.tpot * 1000,
        "e2e_ms": record.e2e * 1000,
        "input_tokens": record.num_prompt_tokens,
        "output_tokens": record.num_output_tokens,
        "error": record.error or None,
    }
