"""What ``octavo bench`` shows of its figures."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.benchmarking.summary import TITLES, Spread, Summary
from octavo.wording import counted

BUSY_SHARE = 0.7
"""From this part of a core on a client may be late to read what a server has sent."""


def rates(summary: Summary, num_processes: int, cpu_share: float) -> list[tuple[str, str]]:
    """Counts and rates, one a row."""
    processes = counted(num_processes, "process", "processes")
    rows = [
        ("requests completed", f"{summary.completed:,}"),
        ("requests failed", f"{summary.failed:,}"),
        ("seconds", f"{summary.duration_seconds:,.2f}"),
        ("tokens in, out", f"{summary.input_tokens:,}, {summary.output_tokens:,}"),
        ("requests a second", f"{summary.request_throughput:,.2f}"),
        ("output tokens a second", f"{summary.output_throughput:,.1f}"),
        ("all tokens a second", f"{summary.total_token_throughput:,.1f}"),
        ("requests at a time, at most", f"{summary.peak_concurrency:,}"),
        ("client", f"{processes}, {cpu_share:.0%} of a core at most"),
    ]
    if summary.goodput is not None and summary.goodput_share is not None:
        good = f"{summary.goodput:,.2f} requests a second, {summary.goodput_share:.1%} of all"
        rows.append(("goodput", good))
    return rows


def spreads(named: Mapping[str, Spread | None]) -> list[tuple[str, str, str, str, str]]:
    """A row for each distribution that there is."""
    rows = [("milliseconds", "    mean", "  median", "     p90", "     p99")]
    for name, spread in named.items():
        if spread is not None:
            values = (spread.mean, spread.median, spread.p90, spread.p99)
            mean, median, p90, p99 = (f"{value:8,.1f}" for value in values)
            title = TITLES.get(name, name.removesuffix("_ms").replace("_", " "))
            rows.append((title, mean, median, p90, p99))
    return rows
