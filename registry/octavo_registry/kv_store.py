"""Stores of keys and values beyond the device's pool: in host memory, on disk, elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStoreKey:
    """What besides its digest a block's bytes depend on: engines of one key may share a store.

    Digests are chains that are seeded by the model's content.
    """

    layout: str
    """How a block is cut into lanes, and what lies in each: cache groups and attention backends."""
    dtype: str
    """In which keys and values are kept: "bfloat16", "fp8_e4m3", ..."""
    num_ranks: int = 1
    """Among how many ranks a block's bytes are divided."""
    rank: int = 0


class Ticket(Protocol):
    """A copy of blocks that is under way."""

    def ends_within(self, seconds: float) -> bool:
        """Whether the copy has ended, well or not; waits so long for it. What raises has failed.

        It ends by itself in any case, by a time-out of the store's own: until then its blocks are
        nobody else's. From then on the store neither reads nor writes them.
        """
        ...


class LoadTicket(Ticket, Protocol):
    """A copy into the pool."""

    def result(self) -> None:
        """Raise what made an ended copy fail; what it has written to its blocks is garbage."""
        ...


class StoreTicket(Ticket, Protocol):
    """A copy out of the pool."""

    def settle(self, is_right: bool) -> None:
        """Keep an ended copy, which may be found from now on, or forget it.

        A step that raises may have written anywhere while the copy was made, which is known later.
        """
        ...


@runtime_checkable
class KVStore(Protocol):
    """Keys and values by content, for one KVStoreKey. The engine's thread calls; nothing waits.

    A block is named by the digest of all tokens up to its end. What raises is taken for a store
    that has nothing.
    """

    def lookup(self, digests: Sequence[bytes]) -> int:
        """How many of these blocks, from the first on, it could bring, in every cache group.

        Of a group with a window it may lack those that the token behind them does not see.
        """
        ...

    def load(self, digests: Sequence[bytes], blocks: Sequence[Sequence[int]]) -> LoadTicket:
        """Begin to copy blocks' content into the pool.

        ``blocks`` name where, by cache group and in the digests' order; 0 is a block that is not
        needed. A group that holds encoded media has none. No step under way uses them.
        """
        ...

    def store(self, group: int, digests: Sequence[bytes], blocks: Sequence[int]) -> StoreTicket:
        """Begin to copy a group's full blocks out of the pool; they stay as they are meanwhile."""
        ...
