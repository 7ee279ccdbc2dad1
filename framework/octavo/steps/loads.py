"""What a step copies or encodes before its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.messages import MediaInput, PackedAdapter
from octavo.steps.slot_fields import Ints


class LineMove(NamedTuple):
    """A copy of a line of recurrent state, to another or between device and host."""

    kind: Literal["copy", "swap_out", "swap_in"]
    source: int
    target: int


@dataclass(slots=True)
class BlockMoves:
    """Byte copies that a step does before its forward, in this order."""

    swap_out: list[tuple[int, int]] = field(default_factory=list)
    """(block, swap block)."""
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    """(swap block, block)."""
    copy: list[tuple[int, int]] = field(default_factory=list)
    """(from block, to block): copy-on-write."""
    lines: list[LineMove] = field(default_factory=list)
    """Done one after the other: what one writes another may read."""


@dataclass(slots=True)
class EncodeItem:
    """An item to encode before the step's forward pass, and the buffer's rows to write."""

    item: MediaInput
    rows: Ints


@dataclass(slots=True)
class RowCuts:
    """A step's rows cut where items begin and end."""

    rows: Ints
    """The row of the step that each is a part of."""
    query_lens: Ints
    behinds: Ints
    """Tokens of that row in this step that stand behind the part."""
    whole: NDArray[np.bool_]
    """Parts that are of an item: their tokens see all of the part."""


class Span(NamedTuple):
    """Consecutive places of a pool on the device."""

    first: int
    length: int


NO_SPAN: Final = Span(0, 0)


class AdapterLoad(NamedTuple):
    """An adapter to copy to the device before a step's forward pass."""

    span: Span
    """Rank rows."""
    adapter: PackedAdapter


POOL_WORDS: Final = 2**22
"""Words of 4 bytes in the pool of automata: room for hundreds of the usual schemas, or for one of
a million entries."""


class AutomatonTokens(Protocol):
    """What a device must know of the vocabulary to walk byte automata."""

    @property
    def token_bytes(self) -> Sequence[bytes | None]:
        """The tokens' bytes by id; None for special tokens, which match no text."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ...


class AutomatonLoad(NamedTuple):
    """An automaton to copy to the device before a step's forward pass."""

    first: int
    """The word where it begins."""
    words: Ints
    vocabulary: AutomatonTokens
