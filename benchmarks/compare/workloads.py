"""What is measured, and how: every engine gets the same prompts in the same order."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Prompts = list[list[int]]
Group = Literal["startup", "decode", "prefill", "throughput", "smoke"]

MAX_MODEL_LEN = 40960
MEMORY_UTILIZATION = 0.9

FIRST_TOKENS = 16
"""A decode step is timed by the difference of two runs: this many output tokens, and ..."""
LAST_TOKENS = 144
"""... this many; so prefill and start of the batch drop out."""
WARM_UP_TOKENS = 32


class Engine(Protocol):
    """What an adapter's ``make(folder)`` returns."""

    max_requests: int | None
    """More in one call are skipped for this engine; None: any number."""

    def run(self, prompts: Prompts, num_tokens: int) -> Prompts:
        """Continue each prompt greedily by exactly that many tokens; done when it returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one length, all there at the start."""

    group: Group
    requests: int
    prompt_tokens: int
    output_tokens: int
    repeats: int = 1

    @property
    def name(self) -> str:
        """What it is called in tables, files and ``--workloads``."""
        match self.group:
            case "startup":
                return "startup"
            case "decode":
                return f"decode_b{self.requests}_ctx{self.prompt_tokens}"
            case "prefill":
                return f"prefill_{self.prompt_tokens}"
            case _:
                counts = f"{self.requests}x{self.prompt_tokens}+{self.output_tokens}"
                return f"{self.group}_{counts}"


def _decode(requests: int, context: int, repeats: int) -> Workload:
    return Workload(
        group="decode",
        requests=requests,
        prompt_tokens=context,
        output_tokens=LAST_TOKENS,
        repeats=repeats,
    )


def _prefill(tokens: int, repeats: int) -> Workload:
    return Workload(
        group="prefill", requests=1, prompt_tokens=tokens, output_tokens=1, repeats=repeats
    )


def _throughput(requests: int, prompt: int, output: int, repeats: int) -> Workload:
    return Workload(
        group="throughput",
        requests=requests,
        prompt_tokens=prompt,
        output_tokens=output,
        repeats=repeats,
    )


STARTUP = Workload(group="startup", requests=1, prompt_tokens=64, output_tokens=1)

WORKLOADS = {
    workload.name: workload
    for workload in (
        STARTUP,
        _decode(1, 1024, 3),
        _decode(8, 1024, 3),
        _decode(32, 1024, 3),
        _decode(128, 1024, 3),
        _decode(256, 512, 3),
        _prefill(1024, 3),
        _prefill(8192, 3),
        _prefill(32768, 3),
        _throughput(1000, 512, 256, 3),
        _throughput(512, 32, 512, 3),
        _throughput(256, 4096, 64, 1),
        Workload(group="smoke", requests=6, prompt_tokens=40, output_tokens=24),
    )
}


def choose(names: list[str]) -> list[Workload]:
    """Workloads by group, by name, or by the start of a name ("decode_b1_"); start-up goes first.

    A name that fits none is a ValueError.
    """
    chosen: dict[str, Workload] = {}
    for name in names:
        found = [w for w in WORKLOADS.values() if name == w.group or w.name.startswith(name)]
        if not found:
            raise ValueError(f"no workload {name!r}; known: {', '.join(WORKLOADS)}")
        chosen.update((workload.name, workload) for workload in found)
    return sorted(chosen.values(), key=lambda workload: workload.group != "startup")


def make_prompts(workload: Workload, *, tokens: int, vocab_size: int, salt: object) -> Prompts:
    """Random ids that depend on the arguments alone: the same for every engine, never repeated."""
    rng = random.Random(f"{workload.name}/{tokens}/{salt}")
    ids = range(10, vocab_size - vocab_size // 16)  # no special tokens at either end
    return [rng.choices(ids, k=tokens) for _ in range(workload.requests)]


def measure(workload: Workload, engine: Engine, vocab_size: int) -> Iterator[float]:
    """Warm up, then yield the seconds of each repeat: of a token for decode, of all otherwise."""

    def timed(num_tokens: int, salt: object, *, prompt_tokens: int | None = None) -> float:
        tokens = workload.prompt_tokens if prompt_tokens is None else prompt_tokens
        prompts = make_prompts(workload, tokens=tokens, vocab_size=vocab_size, salt=salt)
        start = time.perf_counter()
        outputs = engine.run(prompts, num_tokens)
        seconds = time.perf_counter() - start
        counts = {len(output) for output in outputs}
        if len(outputs) != len(prompts) or counts != {num_tokens}:
            raise AssertionError(
                f"{workload.name}: asked {len(prompts)} requests for {num_tokens} tokens each, "
                f"got {len(outputs)} with {sorted(counts)}"
            )
        return seconds

    if workload.group in ("decode", "prefill"):
        timed(4 if workload.group == "decode" else 1, "warm up")
    else:  # short prompts: what is compiled or captured first depends on the batch
        timed(4, "warm up", prompt_tokens=min(WARM_UP_TOKENS, workload.prompt_tokens))
    for repeat in range(workload.repeats):
        if workload.group == "decode":
            first = timed(FIRST_TOKENS, (repeat, "first"))
            last = timed(LAST_TOKENS, (repeat, "last"))
            yield (last - first) / (LAST_TOKENS - FIRST_TOKENS)
        else:
            yield timed(workload.output_tokens, repeat)
