"""Counters and histograms, and Prometheus' text form of them.

One thread adds to a metric, any may read it. A reader may see a histogram between two of its
counts, so its total is computed from the buckets and never contradicts them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "octavo:"
Labels = tuple[str, ...]

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class HistogramValue(msgspec.Struct, array_like=True):
    """What one histogram has seen."""

    counts: list[int]
    """Counts by bucket, each without the ones below it; the last has no upper bound."""
    sum: float = 0.0


Value = float | HistogramValue


class MetricValues(msgspec.Struct, array_like=True, frozen=True):
    """One metric of one process, as another process can add it to its own."""

    name: str
    kind: str
    help: str
    label_names: Labels = ()
    bounds: list[float] = []
    """Upper bounds of a histogram's buckets."""
    values: list[tuple[Labels, Value]] = []

    def lines(self, shared: Mapping[str, str]) -> Iterable[str]:
        """Write it; ``shared`` labels stand on every line."""
        name = PREFIX + self.name
        yield f"# HELP {name} {self.help}"
        yield f"# TYPE {name} {self.kind}"
        for labels, value in self.values:
            given = {**shared, **dict(zip(self.label_names, labels, strict=True))}
            if not isinstance(value, HistogramValue):
                yield f"{name}{_braces(given)} {_number(value)}"
                continue
            total = 0
            bounds = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
            for bound, count in zip(bounds, value.counts, strict=True):
                total += count
                yield f"{name}_bucket{_braces({**given, 'le': bound})} {total}"
            yield f"{name}_sum{_braces(given)} {_number(value.sum)}"
            yield f"{name}_count{_braces(given)} {total}"


class Counter:
    """A number that only grows, by labels."""

    def __init__(self, name: str, help: str, label_names: Labels = ()) -> None:
        self._head = (name, "counter", help, label_names)
        self._values: dict[Labels, float] = {} if label_names else {(): 0}

    def add(self, amount: float = 1, labels: Labels = ()) -> None:
        """Count."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def read(self) -> MetricValues:
        """Return what it stands at."""
        return MetricValues(*self._head, values=list(self._values.copy().items()))


class Histogram:
    """How often values fell into each bucket, by labels."""

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], label_names: Labels = ()
    ) -> None:
        self._head = (name, "histogram", help, label_names)
        self._bounds = list(bounds)
        self._values: dict[Labels, HistogramValue] = {}
        if not label_names:
            self._make(())

    def observe(self, value: float, count: int = 1, labels: Labels = ()) -> None:
        """Take a value that was seen ``count`` times."""
        seen = self._values.get(labels) or self._make(labels)
        seen.counts[bisect_left(self._bounds, value)] += count
        seen.sum += value * count

    def read(self) -> MetricValues:
        """Return what it has seen."""
        values: list[tuple[Labels, Value]] = [
            (labels, HistogramValue(seen.counts[:], seen.sum))
            for labels, seen in self._values.copy().items()
        ]
        return MetricValues(*self._head, bounds=self._bounds, values=values)

    def _make(self, labels: Labels) -> HistogramValue:
        made = self._values[labels] = HistogramValue([0] * (len(self._bounds) + 1))
        return made


def gauge(name: str, help: str, value: float, **labels: str) -> MetricValues:
    """Return a number as it stands now."""
    values: list[tuple[Labels, Value]] = [(tuple(labels.values()), value)]
    return MetricValues(name, "gauge", help, tuple(labels), values=values)


def total(name: str, help: str, values: Mapping[str, float], *, label: str = "") -> MetricValues:
    """Return a counter that something else keeps; its values by ``label``, or the one by ""."""
    if not label:
        return MetricValues(name, "counter", help, values=[((), values[""])])
    by_label: list[tuple[Labels, Value]] = [((key,), value) for key, value in values.items()]
    return MetricValues(name, "counter", help, (label,), values=by_label)


def add_up(processes: Iterable[Iterable[MetricValues]]) -> list[MetricValues]:
    """Add the metrics of several processes; those of the same name must be of the same form."""
    sums: dict[str, MetricValues] = {}
    for metric in (metric for metrics in processes for metric in metrics):
        known = sums.get(metric.name)
        if known is None:
            sums[metric.name] = metric
            continue
        values = dict(known.values)
        for labels, value in metric.values:
            values[labels] = _sum(values.get(labels), value)
        sums[metric.name] = msgspec.structs.replace(known, values=list(values.items()))
    return list(sums.values())


def exposition(metrics: Iterable[MetricValues], shared: Mapping[str, str]) -> str:
    """Return the text that Prometheus reads."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines(shared))


def _sum(one: Value | None, other: Value) -> Value:
    if isinstance(one, HistogramValue) and isinstance(other, HistogramValue):
        counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
        return HistogramValue(counts, one.sum + other.sum)
    if one is None or isinstance(one, HistogramValue) or isinstance(other, HistogramValue):
        return other
    return one + other


def _braces(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
