"""A planned step of whole texts, each of which becomes a vector; nothing is kept between steps."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from octavo.steps.slot_fields import Ints

T = TypeVar("T")


class PooledSections(NamedTuple, Generic[T]):
    """The sections of a plan's buffer in their order: arrays, their lengths, or tensors."""

    ids: T
    """Tokens of all rows, one row behind the other."""
    query_starts: T
    """One more than rows."""
    seconds: T
    """Where each row's tokens of type 1 begin; empty: none has any."""
    skips: T
    """Tokens at each row's beginning that count for nothing; empty: none."""
    widths: T
    """Entries of each row's vector that count; empty: all."""
    unit_lengths: T
    """1 for rows whose vector is scaled to a length of 1; empty: none is."""


class PooledPlan(msgspec.Struct, kw_only=True, eq=False):
    """What the device does in one step."""

    step_id: int
    buffer: Ints
    """The sections, one behind the other."""
    sizes: PooledSections[int]
    query_lens: Ints

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return self.sizes.ids

    @property
    def awaits_masks(self) -> bool:
        """No token is sampled."""
        return False


def pack_pooled(step_id: int, query_lens: Ints, sections: PooledSections[Ints]) -> PooledPlan:
    """Lay the sections into one buffer."""
    return PooledPlan(
        step_id=step_id,
        buffer=np.concatenate(sections, dtype=np.int32),
        sizes=PooledSections._make(map(len, sections)),
        query_lens=query_lens,
    )
