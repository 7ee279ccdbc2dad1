"""A run as an SVG picture: how each measure is distributed, and tokens over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from octavo.benchmarking.records import Record
from octavo.benchmarking.summary import TITLES, percentile, samples

WIDTH, HEIGHT = 360, 230
MARGIN_LEFT, MARGIN_TOP, MARGIN_RIGHT, MARGIN_BOTTOM = 52, 34, 16, 40
NUM_POINTS = 120
NUM_BINS = 60
MARKS = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
STYLE = """
text { font: 11px sans-serif; fill: #333 } .title { font-size: 13px; font-weight: bold }
.axis { stroke: #999; fill: none } .grid { stroke: #e4e4e4 } .mark { stroke: #c33; opacity: .6 }
.line { stroke: #1f6fb2; stroke-width: 1.8; fill: none } .area { fill: #1f6fb2; opacity: .2 }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One diagram; values are in the units of its axes, which begin at 0."""

    title: str
    x_label: str
    points: list[tuple[float, float]]
    most_x: float
    most_y: float
    y_unit: str = ""
    marks: tuple[tuple[float, str], ...] = ()
    """Values of x with a name."""


def draw(records: Sequence[Record], title: str) -> str:
    """Return the picture's text."""
    panels = [
        _distribution(TITLES[name], [value * 1000 for value in values])
        for name, values in samples(records).items()
        if values
    ]
    good = [record for record in records if not record.error and record.times]
    if good:
        panels.append(_output(good))
    columns = 2
    rows = -(-len(panels) // columns) or 1
    width, height = columns * WIDTH, rows * HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text class="title" x="12" y="20">{escape(title)}</text>',
    ]
    for index, panel in enumerate(panels):
        x, y = index % columns * WIDTH, index // columns * HEIGHT + 30
        parts.append(f'<g transform="translate({x} {y})">{_panel(panel)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _distribution(title: str, values: list[float]) -> Panel:
    """The share of values up to x."""
    ordered = sorted(values)
    shares = [index / NUM_POINTS for index in range(NUM_POINTS + 1)]
    return Panel(
        title=title,
        x_label="milliseconds",
        points=[(percentile(ordered, share), share * 100) for share in shares],
        most_x=nice(ordered[-1]),
        most_y=100,
        y_unit=" %",
        marks=tuple((percentile(ordered, share), name) for share, name in MARKS),
    )


def _output(records: Sequence[Record]) -> Panel:
    """Tokens a second over the time of the run."""
    begin = min(record.sent for record in records)
    seconds = max(max(record.ended for record in records) - begin, 1e-6)
    bins = [0.0] * NUM_BINS
    for record in records:
        tokens = record.num_output_tokens / len(record.times)
        for time in record.times:
            bins[min(int((time - begin) / seconds * NUM_BINS), NUM_BINS - 1)] += tokens
    rates = [tokens * NUM_BINS / seconds for tokens in bins]
    points = [((index + 0.5) * seconds / NUM_BINS, rate) for index, rate in enumerate(rates)]
    return Panel(
        title="output tokens a second",
        x_label="seconds",
        points=points,
        most_x=seconds,
        most_y=nice(max(rates)),
    )


def _panel(panel: Panel) -> str:
    right, bottom = WIDTH - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            MARGIN_LEFT + x / (panel.most_x or 1) * (right - MARGIN_LEFT),
            bottom - y / (panel.most_y or 1) * (bottom - MARGIN_TOP),
        )

    parts = [f'<text class="title" x="{MARGIN_LEFT}" y="18">{escape(panel.title)}</text>']
    for step in range(5):
        x, y = place(panel.most_x * step / 4, panel.most_y * step / 4)
        parts += [
            f'<line class="grid" x1="{MARGIN_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{MARGIN_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_number(panel.most_y * step / 4)}{panel.y_unit}</text>",
            f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">'
            f"{_number(panel.most_x * step / 4)}</text>",
        ]
    for number, (value, name) in enumerate(panel.marks):
        x, _ = place(value, 0)
        parts += [
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN_TOP}" y2="{bottom}"/>',
            f'<text x="{right}" y="{bottom - 44 + 14 * number}" text-anchor="end">'
            f"{name} {_number(value)}</text>",
        ]
    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in panel.points)
    middle = (MARGIN_LEFT + right) // 2
    parts += [
        f'<polyline class="line" points="{line}"/>',
        f'<path class="axis" d="M{MARGIN_LEFT} {MARGIN_TOP}V{bottom}H{right}"/>',
        f'<text x="{middle}" y="{bottom + 31}" text-anchor="middle">{panel.x_label}</text>',
    ]
    return "".join(parts)


def nice(value: float) -> float:
    """The next number of the kind 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1e-9
    while power * 10 < value:
        power *= 10
    return next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
