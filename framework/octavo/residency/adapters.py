"""Which adapters an engine was given: who may name them, and who still needs them."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import OctavoError, UnknownAdapterError
from octavo.messages import PackedAdapter
from octavo.residency.places import Spans
from octavo.residency.pool import DevicePool, Need, Resident
from octavo.steps.loads import Span


@dataclass(slots=True)
class _Known:
    adapter: PackedAdapter
    num_holders: int = 0
    """Clients that may name it in requests."""
    num_live: int = 0
    """Sequences that have not ended."""


class KnownAdapters:
    """The adapters, and the pool of rank rows in which those lie that run."""

    def __init__(self, num_rank_rows: int, max_rank: int) -> None:
        """Without rank rows the engine takes no adapters."""
        self.pool: DevicePool[PackedAdapter, Span] = DevicePool("adapter", Spans(num_rank_rows))
        self._max_rank = max_rank
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, adapter: PackedAdapter) -> None:
        """Let requests name an adapter, until this client has removed it."""
        head = adapter.head
        if not 0 < head.rank <= self._max_rank:
            raise OctavoError(f"an adapter of rank {head.rank} is above {self._max_rank}")
        self._known.setdefault(head.content_hash, _Known(adapter)).num_holders += 1

    def remove(self, content_hash: str) -> None:
        """Take no more requests of one client; those that are here go on."""
        known = self._known.get(content_hash)
        if known is not None and known.num_holders:
            known.num_holders -= 1
            self._forget_unused(content_hash, known)

    def refusal(self, content_hash: str) -> UnknownAdapterError | None:
        """Why requests may not name this; None where they may."""
        known = self._known.get(content_hash) if content_hash else None
        if not content_hash or (known is not None and known.num_holders > 0):
            return None
        return UnknownAdapterError("the adapter was unloaded")

    def needs(self, content_hash: str) -> tuple[Need, ...]:
        """What a sequence with that adapter needs on the device."""
        if not content_hash:
            return ()
        adapter = self._known[content_hash].adapter
        return (Need(self.pool, Resident(content_hash, adapter.head.rank, adapter)),)

    def begin(self, content_hash: str, num_sequences: int) -> None:
        """Keep an adapter until that many sequences more have ended."""
        if content_hash:
            self._known[content_hash].num_live += num_sequences

    def end(self, content_hash: str) -> None:
        """One sequence has ended, and runs no more."""
        if content_hash:
            known = self._known[content_hash]
            known.num_live -= 1
            self._forget_unused(content_hash, known)

    def _forget_unused(self, content_hash: str, known: _Known) -> None:
        if not known.num_holders and not known.num_live:
            self.pool.drop(content_hash)
            del self._known[content_hash]
