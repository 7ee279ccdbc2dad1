"""Figures of a run: rates, percentiles, and how many requests met what was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.benchmarking.records import Record
from octavo.errors import ConfigError

TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end to end",
}
"""What is measured of a request, in the order in which it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity's distribution, in milliseconds."""

    mean: float
    median: float
    p90: float
    p99: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share lies, between two neighbours where it falls there."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(seconds: Sequence[float]) -> Spread | None:
    """Percentiles of values in seconds; None where there are none."""
    if not seconds:
        return None
    ordered = sorted(value * 1000 for value in seconds)
    return Spread(
        mean=math.fsum(ordered) / len(ordered),
        median=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
    )


def samples(records: Sequence[Record]) -> dict[str, list[float]]:
    """All values of each measure in seconds, of answers that are whole."""
    good = [record for record in records if not record.error]
    return {
        "ttft": [record.ttft for record in good],
        "tpot": [record.tpot for record in good if record.tpot is not None],
        "itl": [gap for record in good for gap in record.gaps()],
        "e2e": [record.e2e for record in good],
    }


def parse_goodput(given: Sequence[str]) -> dict[str, float]:
    """Read ``ttft:200 itl:50``: the most milliseconds by measure."""
    asked: dict[str, float] = {}
    for each in given:
        name, _, value = each.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if name not in TITLES or not limit > 0:
            raise ConfigError(
                f"goodput={each!r} must be one of {', '.join(TITLES)}, a colon and milliseconds, "
                "such as ttft:200"
            )
        asked[name] = limit
    return asked


def meets(record: Record, asked: Mapping[str, float]) -> bool:
    """Whether an answer is whole and within each limit; of its gaps 99 % must be."""
    if record.error:
        return False
    gaps = record.gaps()
    took = {
        "ttft": record.ttft,
        "tpot": record.tpot or 0.0,
        "itl": percentile(sorted(gaps), 0.99) if gaps else 0.0,
        "e2e": record.e2e,
    }
    return all(took[name] * 1000 <= limit for name, limit in asked.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to."""

    completed: int
    failed: int
    duration_seconds: float
    """From the first request to the end of the last answer."""
    input_tokens: int
    output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    peak_concurrency: int
    goodput: float | None
    """Requests a second that met the limits; None: none were given."""
    goodput_share: float | None
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    errors: dict[str, int]
    """How often each came; the most frequent ten."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def summarize(records: Sequence[Record], asked: Mapping[str, float]) -> Summary:
    """Put the figures of a run together; ``asked`` as ``parse_goodput`` gives it."""
    good = [record for record in records if not record.error]
    duration = max(r.ended for r in records) - min(r.sent for r in records)
    input_tokens = sum(record.num_prompt_tokens for record in good)
    output_tokens = sum(record.num_output_tokens for record in good)
    per_second = 1 / max(duration, 1e-9)
    num_met = sum(meets(record, asked) for record in records)
    values = {name: spread(seconds) for name, seconds in samples(records).items()}
    return Summary(
        completed=len(good),
        failed=len(records) - len(good),
        duration_seconds=duration,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        request_throughput=len(good) * per_second,
        output_throughput=output_tokens * per_second,
        total_token_throughput=(input_tokens + output_tokens) * per_second,
        peak_concurrency=_peak(records),
        goodput=num_met * per_second if asked else None,
        goodput_share=num_met / len(records) if asked else None,
        ttft_ms=values["ttft"],
        tpot_ms=values["tpot"],
        itl_ms=values["itl"],
        e2e_ms=values["e2e"],
        errors=_errors(records),
    )


def _peak(records: Sequence[Record]) -> int:
    """Answers under way at a time, at most."""
    changes = [(r.sent, 1) for r in records] + [(r.ended, -1) for r in records]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _errors(records: Sequence[Record]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        if record.error:
            counts[record.error] = counts.get(record.error, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1])[:10])
