"""Which adapters the device holds, and in which rank rows: the scheduler's side of the pool.

Steps run in order, so that rows may be given to another adapter as soon as the step that used them
last is planned. What is loaded stays until its rows are needed; of those that no running sequence
uses, the one used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.errors import OctavoError, UnknownAdapterError
from octavo.messages import PackedAdapter
from octavo.residency.spans import Spans
from octavo.steps.loads import NO_RANKS, AdapterLoad, RankSpan


@dataclass(slots=True)
class _Known:
    adapter: PackedAdapter
    num_holders: int = 0
    """Clients that may name it in requests."""
    num_live: int = 0
    """Sequences that have not ended."""
    num_running: int = 0
    span: RankSpan | None = None


class AdapterPool:
    """The books of all adapters that an engine was given, least recently used first."""

    def __init__(self, num_rank_rows: int, max_rank: int) -> None:
        """Without rank rows the engine takes no adapters."""
        self.num_loads = 0
        self._max_rank = max_rank
        self._spans = Spans(num_rank_rows)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._loads: dict[str, AdapterLoad] = {}
        """What the next plan copies."""

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

    def provide(self, content_hash: str) -> RankSpan | None:
        """Have an adapter on the device when the next planned step runs; None: not now."""
        if not content_hash:
            return NO_RANKS
        known = self._known[content_hash]
        self._known.move_to_end(content_hash)
        if known.span is None:
            known.span = self._take(known.adapter.head.rank)
            if known.span is not None:
                self._loads[content_hash] = AdapterLoad(known.span, known.adapter)
        return known.span

    def is_running(self, content_hash: str) -> bool:
        """Whether a running sequence uses it: one more needs no rows."""
        return self._known[content_hash].num_running > 0

    def pin(self, content_hash: str) -> None:
        """A sequence runs with it: it stays where it is."""
        if content_hash:
            self._known[content_hash].num_running += 1

    def unpin(self, content_hash: str) -> None:
        """A sequence runs no more."""
        if content_hash:
            self._known[content_hash].num_running -= 1

    def take_loads(self) -> list[AdapterLoad]:
        """Hand what is to be copied to a plan."""
        loads, self._loads = self._loads, {}
        self.num_loads += len(loads)
        return list(loads.values())

    def load_again(self) -> None:
        """A step has raised: nobody knows what it has copied."""
        for content_hash, known in self._known.items():
            if known.span is not None:
                self._loads[content_hash] = AdapterLoad(known.span, known.adapter)

    def stats(self) -> dict[str, int]:
        """Counts, now or since the start."""
        on_device = [known for known in self._known.values() if known.span is not None]
        return {
            "num_adapters": len(self._known),
            "num_device_adapters": len(on_device),
            "num_adapter_loads": self.num_loads,
        }

    def _take(self, rank: int) -> RankSpan | None:
        idle = [h for h, known in self._known.items() if known.span and not known.num_running]
        pinned = sorted(k.span for k in self._known.values() if k.span and k.num_running)
        if self._spans.gap_for(rank, pinned) is None:
            return None  # to evict the idle would not help
        while (first := self._spans.take(rank)) is None:
            self._evict(idle.pop(0))
        return RankSpan(first, rank)

    def _evict(self, content_hash: str) -> None:
        known = self._known[content_hash]
        if known.span is not None:
            self._spans.give(known.span)
            known.span = None
            self._loads.pop(content_hash, None)

    def _forget_unused(self, content_hash: str, known: _Known) -> None:
        if not known.num_holders and not known.num_live:
            self._evict(content_hash)
            del self._known[content_hash]
