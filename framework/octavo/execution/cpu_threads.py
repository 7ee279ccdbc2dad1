"""How many threads of a CPU a model is worth.

A product is cut among the threads, which then wait for one another, a few hundred times a token.
Where a weight is small the waiting is longer than the work, and on a CPU that others use too a
thread may have to wait for its turn: milliseconds, for microseconds of work::

    threads = bytes of an average weight matrix / 2 MiB     (at least 1, at most torch's choice)

so that each has about 0.1 ms of reading to do. Measured on 2 shared cores, decode steps of one row
with 1 and 2 threads: 4 and 7 ms at 0.8 MiB a matrix, 9 and 9 at 3 MiB, 20 and 15 at 12 MiB.
"""

from __future__ import annotations

from typing import Final

from torch import nn

BYTES_PER_THREAD: Final = 2 * 1024**2


def useful_threads(model: nn.Module, *, most: int) -> int:
    """Threads that make the model's steps faster, by the size of its weight matrices."""
    sizes = [p.numel() * p.element_size() for p in model.parameters() if p.dim() > 1]
    average = sum(sizes) // max(len(sizes), 1)
    return max(min(average // BYTES_PER_THREAD, most), 1)
