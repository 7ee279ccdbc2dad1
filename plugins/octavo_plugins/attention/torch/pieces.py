"""Rows of a step cut into pieces, and pieces sorted into groups that one call can compute.

Everything here is host arithmetic on a few integers per row. Axis suffixes: N pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Runs of consecutive queries, each of one row."""

    rows_N: Ints
    tokens_N: Ints
    """The first query's index among the step's tokens."""
    sizes_N: Ints
    behinds_N: Ints
    """How many of the row's queries there are from the first query of the piece on."""
    key_lens_N: Ints
    """Cached positions that the piece sees; an upper bound where context lengths are."""
    wholes_N: NDArray[np.bool_]
    """Pieces whose queries see all of their row, not only what is before them."""

    def __getitem__(self, which: Ints) -> Pieces:
        return Pieces(
            rows_N=self.rows_N[which],
            tokens_N=self.tokens_N[which],
            sizes_N=self.sizes_N[which],
            behinds_N=self.behinds_N[which],
            key_lens_N=self.key_lens_N[which],
            wholes_N=self.wholes_N[which],
        )

    def __len__(self) -> int:
        return len(self.rows_N)


def cut(
    rows: Ints,
    query_lens_R: Ints,
    context_lens_R: Ints,
    *,
    max_size: int,
    whole_R: NDArray[np.bool_],
    window: int | None,
) -> Pieces:
    """Cut these rows into pieces of at most ``max_size`` queries, in order."""
    lens = query_lens_R[rows]
    counts = -(-lens // max_size)
    rows_N = np.repeat(rows, counts)
    index_in_row_N = np.arange(len(rows_N)) - np.repeat(np.cumsum(counts) - counts, counts)
    offsets_N = index_in_row_N * max_size
    lens_N = query_lens_R[rows_N]
    sizes_N = np.minimum(max_size, lens_N - offsets_N)
    behinds_N = lens_N - offsets_N
    firsts_N = context_lens_R[rows_N] - behinds_N
    wholes_N = whole_R[rows_N]
    ends_N = np.where(wholes_N, context_lens_R[rows_N], firsts_N + sizes_N)
    begins_N = np.maximum(firsts_N - window + 1, 0) if window is not None else 0
    starts_R = np.cumsum(query_lens_R) - query_lens_R
    return Pieces(
        rows_N=rows_N,
        tokens_N=starts_R[rows_N] + offsets_N,
        sizes_N=sizes_N,
        behinds_N=behinds_N,
        key_lens_N=ends_N - begins_N,
        wholes_N=wholes_N,
    )


def similar(
    pieces: Pieces, *, spread: float, max_cells: int = 2**62, max_keys: int = 2**62
) -> Iterator[Pieces]:
    """Groups whose key lengths differ at most by the factor ``spread``.

    A group's padded rectangles [pieces, queries, keys] have at most ``max_cells`` cells and
    ``max_keys`` keys, but for a group of one piece. So the number of groups follows the work to be
    done, not the requests.
    """
    by_length = pieces[np.argsort(-pieces.key_lens_N, kind="stable")]
    first = 0
    while first < len(by_length):
        longest = int(by_length.key_lens_N[first])
        last = int(np.searchsorted(-by_length.key_lens_N, -longest / spread, side="right"))
        num_cells = np.maximum.accumulate(by_length.sizes_N[first:last]) * longest
        num_cells *= np.arange(1, last - first + 1)
        count = int(np.searchsorted(num_cells, max_cells, side="right"))
        count = max(min(count, max_keys // longest), 1)
        # Back to the order of the step: neighbours in memory stay neighbours.
        yield by_length[first + np.argsort(by_length.tokens_N[first : first + count])]
        first += count
