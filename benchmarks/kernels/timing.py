"""How kernels are timed: replays of a graph that goes round over buffers larger than the L2."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

READ_TBPS = 4.3
"""What a copy moves on an H200, TB/s; read-only streams reach 4.4."""
BF16_TFLOPS = 790.0
"""What an 8192^3 bf16 product reaches on an H200 with random data."""


def graph_time_us(calls: Sequence[Callable[[], object]], *, rounds: int = 20) -> float:
    """Median microseconds of one call when the calls run in turn, inside a graph.

    Give one call per set of buffers: together they must exceed the L2, or the cache is measured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)
