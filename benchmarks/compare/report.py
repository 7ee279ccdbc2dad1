"""Files of measured values, and the table made of them."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.compare.limits import limit_seconds
from benchmarks.compare.shapes import SHAPES
from benchmarks.compare.workloads import STARTUP, WORKLOADS

STARTUP_METRICS = ("startup_cold", "startup_warm")

# At least so many times as fast as vLLM: for the 8B and the 1B shape; any other owes their mean.
TIMES_VLLM = {
    "decode_b1_ctx1024": (1.15, 1.5),
    "decode_b8_ctx1024": (1.15, 1.5),
    "decode_b32_ctx1024": (1.15, 1.5),
    "decode_b128_ctx1024": (1.12, 1.3),
    "decode_b256_ctx512": (1.12, 1.3),
    "prefill_1024": (1.1, 1.0),
    "prefill_8192": (1.05, 1.0),
    "prefill_32768": (1.0, 1.0),
    "throughput_1000x512+256": (1.08, 1.35),
    "throughput_512x32+512": (1.1, 1.4),
    "throughput_256x4096+64": (1.0, 1.0),
}
# At most so many seconds, whatever the others take.
MOST_SECONDS = {("8b", "startup_warm"): 6.0, ("8b", "startup_cold"): 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One measured value, in seconds."""

    engine: str
    model: str
    metric: str
    round: int
    seconds: float


Cells = dict[tuple[str, str], dict[str, list[float]]]
"""Raw seconds by (model, metric), then by engine."""


def write_values(values: Iterable[Value], path: Path) -> None:
    path.write_text(json.dumps([asdict(value) for value in values], indent=0) + "\n")


def read_values(paths: Iterable[Path]) -> list[Value]:
    return [Value(**entry) for path in paths for entry in json.loads(path.read_text())]


def table(values: Sequence[Value]) -> str:
    """One row a model and workload: medians with their spread, ratios, and whether it passes."""
    cells: Cells = defaultdict(lambda: defaultdict(list))
    for value in values:
        cells[value.model, value.metric][value.engine].append(value.seconds)
    engines = [e for e in ("octavo", "vllm", "hf") if any(v.engine == e for v in values)]
    header = ["model", "workload", "unit", *engines, "x vllm", "limit", "x limit", "verdict"]
    rows = [
        _row(model, metric, cells[model, metric], engines)
        for model in SHAPES
        for metric in (*STARTUP_METRICS, *WORKLOADS)
        if (model, metric) in cells
    ]
    lines = [header, ["-" * len(name) for name in header], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _row(model: str, metric: str, raw: dict[str, list[float]], engines: list[str]) -> list[str]:
    workload = WORKLOADS.get(metric, STARTUP)
    limit = limit_seconds(SHAPES[model], workload)
    unit, show = _unit(metric)
    medians = {engine: statistics.median(values) for engine, values in raw.items()}
    ours, theirs = medians.get("octavo"), medians.get("vllm")
    return [
        model,
        metric,
        unit,
        *(_cell(raw.get(engine), show) for engine in engines),
        f"{theirs / ours:.2f}" if ours and theirs else "",
        f"{show(limit):.4g}" if limit is not None else "",
        f"{ours / limit:.2f}" if ours and limit is not None else "",
        _verdict(model, metric, ours, theirs),
    ]


def _unit(metric: str) -> tuple[str, Callable[[float], float]]:
    """The unit that people read, and what turns seconds into it."""
    workload = WORKLOADS.get(metric, STARTUP)
    match workload.group:
        case "startup":
            return "s", lambda seconds: seconds
        case "decode" | "prefill":
            return "ms", lambda seconds: seconds * 1e3
        case _:
            tokens = workload.requests * workload.output_tokens
            return "out tok/s", lambda seconds: tokens / seconds


def _cell(raw: list[float] | None, show: Callable[[float], float]) -> str:
    """Median, and half of the range where there are several values."""
    if not raw:
        return ""
    median = statistics.median(raw)
    spread = f" ±{50 * (max(raw) - min(raw)) / median:.0f}%" if len(raw) > 1 else ""
    return f"{show(median):.4g}{spread}" if show(median) < 1e4 else f"{show(median):.0f}{spread}"


def _bar(model: str, metric: str) -> float | None:
    if metric not in TIMES_VLLM:
        return None
    for_8b, for_1b = TIMES_VLLM[metric]
    return {"8b": for_8b, "1b": for_1b}.get(model, (for_8b + for_1b) / 2)


def _verdict(model: str, metric: str, ours: float | None, theirs: float | None) -> str:
    if ours is None:
        return ""
    most, times = MOST_SECONDS.get((model, metric)), _bar(model, metric)
    failed = []
    if most is not None and ours > most:
        failed.append(f"> {most:g} s")
    if times is not None and theirs is not None and theirs / ours < times:
        failed.append(f"< {times:g}x")
    judged = most is not None or (times is not None and theirs is not None)
    return f"FAIL {', '.join(failed)}" if failed else "pass" if judged else ""
