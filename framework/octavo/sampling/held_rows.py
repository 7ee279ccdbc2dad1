"""Hidden rows that are kept to sample from them in later steps, without their tokens run again.

Axis suffixes: H lines, R rows, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.layers.adapted import AdapterSpans


def held_bytes(num_slots: int, row_bytes: int) -> int:
    """What they take on the device."""
    return 2 * num_slots * row_bytes


class HeldRows:
    """Two lines a slot: one for what is put off, and behind all of these one for its family."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._held_HD: Tensor | None = None
        """Made when the first row is kept, which tells its size."""

    def put_off(self, slots_R: Tensor, hidden_RD: Tensor) -> None:
        """Keep rows of which these slots sample later."""
        self._keep(slots_R, hidden_RD)

    def keep_for_family(self, slots_R: Tensor, hidden_RD: Tensor) -> None:
        """Keep rows from which others of the families that these slots lead will sample."""
        self._keep(slots_R + self._num_slots, hidden_RD)

    def at(self, lines_R: Tensor) -> Tensor:
        """The rows of some lines."""
        if self._held_HD is None:
            raise RuntimeError("no hidden row is held")
        return self._held_HD.index_select(0, lines_R)

    def _keep(self, lines_R: Tensor, hidden_RD: Tensor) -> None:
        if self._held_HD is None:
            self._held_HD = hidden_RD.new_zeros(2 * self._num_slots, hidden_RD.shape[1])
        self._held_HD.index_copy_(0, lines_R.long(), hidden_RD)


def insert(rows: Tensor, first: int, more: Tensor) -> Tensor:
    """Rows with some more before the one at ``first``."""
    return torch.cat([rows[:first], more, rows[first:]])


def insert_spans(spans: AdapterSpans, first: int, more: AdapterSpans) -> AdapterSpans:
    """Ranks of rows with those of some more before the one at ``first``."""
    return spans._replace(
        first=insert(spans.first, first, more.first), rank=insert(spans.rank, first, more.rank)
    )
