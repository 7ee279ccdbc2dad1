"""Blocks that a store brings and takes: who waits for them, and who holds them meanwhile.

A sequence whose prefix is brought holds blocks, and no slot, until that has ended. Then it waits at
its place again, and the blocks are found by content; where the store fails it computes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.cache.pool import Blocks
from octavo.cache.prefix import first_visible, longest_prefix
from octavo.scheduling.placement import Placement
from octavo.scheduling.sequence import Sequence
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.kv_store import KVStore, LoadTicket, StoreTicket, Ticket

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Fetch:
    """A prefix that is brought."""

    sequence: Sequence | None
    """Who waits for it; None: nobody any more, and nothing of it is used."""
    first: int
    """The first block that the pool lacks."""
    digests: list[bytes]
    blocks_by_group: list[Blocks]
    """Blocks by digest, those of other sequences among them; 0: not needed."""
    behind: int
    """Steps up to this one may still write to the blocks, which others held before."""
    ticket: LoadTicket | None = None
    is_right: bool = True
    """False: the ticket does not know how its copy stands."""


@dataclass(slots=True, eq=False)
class Stored:
    """Blocks that a store copies, or has copied."""

    ticket: StoreTicket
    blocks: Blocks
    """Held until the copy has ended."""
    is_right: bool = True
    """False: a step has raised since it began, or the ticket does not know how it stands."""
    behind: int | None = None
    """The copy has ended: it is right if no step up to this one raises."""


class Fetching:
    """What of one engine's pool is on its way from or to a store."""

    def __init__(self, store: KVStore, placement: Placement) -> None:
        self._store = store
        self._placement = placement
        self._pool = placement.pool
        placement.offer = self.offer
        self._fetches: list[Fetch] = []
        self._stored: list[Stored] = []
        self.num_fetched_blocks = 0
        self.num_failures = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way, or not settled."""
        return bool(self._fetches or self._stored)

    def begin(self, sequence: Sequence, step_id: int) -> bool:
        """Have the store bring more of a waiting sequence's prefix than the pool has, if it can.

        ``step_id`` is the newest step's. Of each time that it waits the store is asked once.
        """
        placement, pool = self._placement, self._pool
        layout = placement.tables.layout
        moves = placement.next_plan.moves
        # A follower shares its leader's blocks. Blocks in moves are free, and not yet read.
        if (
            sequence.is_asked
            or placement.slot_table.num_free <= len(self._fetches)
            or sequence.swapped is not None
            or sequence.wants_prompt_logprobs
            or (sequence.leader is not None and sequence.leader.slot >= 0)
            or moves.swap_out
            or moves.swap_in
            or moves.copy
            or not placement.has_room_for(sequence)
        ):
            return False
        sequence.is_asked = True
        digests = placement.digests_of(sequence)[: placement.most_cached_blocks(sequence)]
        length, held = longest_prefix(pool, layout, digests, len(digests))
        found = min(self._lookup(digests), len(digests))
        if found <= length:
            return False
        blocks_by_group = []
        for group, had in zip(layout.groups, held, strict=True):
            if group.spec.rows is not None:
                blocks_by_group.append(np.zeros(0, np.int32))
                continue
            first = first_visible(group.spec.window, found * layout.block_tokens)
            first //= layout.block_tokens
            blocks = np.zeros(found, np.int32)
            blocks[first:length] = had[first:length]
            pool.share(blocks[first:length])
            blocks_by_group.append(blocks)
        for blocks, group in zip(blocks_by_group, layout.groups, strict=True):
            if len(blocks):
                first = first_visible(group.spec.window, found * layout.block_tokens)
                first = max(length, first // layout.block_tokens)
                blocks[first:] = pool.allocate(found - first)
        self._fetches.append(Fetch(sequence, length, digests[:found], blocks_by_group, step_id))
        return True

    def take_ended(self, step_id: int, num_done: int) -> list[Sequence]:
        """Return sequences that wait for a slot now.

        ``step_id`` is the newest step's, and ``num_done`` that of the last one that is over.
        """
        self._settle(step_id, num_done)
        ended = []
        for fetch in [*self._fetches]:
            if fetch.ticket is None and fetch.behind <= num_done:
                self._load(fetch)
            ticket = fetch.ticket
            if ticket is not None and self._has_ended(fetch, ticket, 0.0):
                if fetch.sequence is not None and fetch.is_right and self._succeeds(ticket):
                    self._register(fetch)
                self._release(fetch)
            if fetch not in self._fetches and fetch.sequence is not None:
                ended.append(fetch.sequence)
        return ended

    def wait(self, seconds: float) -> None:
        """Wait so long for a copy that is under way, if there is one."""
        copies: list[Fetch | Stored] = [each for each in self._fetches if each.ticket is not None]
        copies += [each for each in self._stored if each.behind is None]
        if copies and copies[0].ticket is not None:
            self._has_ended(copies[0], copies[0].ticket, seconds)

    def abandon(self, sequence: Sequence) -> bool:
        """Forget who waits; the blocks are free when the ticket has ended. False: it does not."""
        for fetch in self._fetches:
            if fetch.sequence is sequence:
                fetch.sequence = None
                if fetch.ticket is None:
                    self._release(fetch)
                return True
        return False

    def start_over(self) -> list[Sequence]:
        """Use nothing that is under way, and return who waited: steps may have written there."""
        for each in self._stored:
            each.is_right = False
        waiting = [fetch.sequence for fetch in self._fetches if fetch.sequence is not None]
        for sequence in waiting:
            self.abandon(sequence)
        return waiting

    def offer(self, group: int, digests: Several[bytes], blocks: Several[int]) -> None:
        """Give the store full blocks that the pool did not have before."""
        pairs = zip(digests, blocks, strict=True)
        new = [pair for pair in pairs if self._pool.find(group, pair[0]) is None]
        if not new:
            return
        ticket = self._call(self._store.store, group, *map(list, zip(*new, strict=True)))
        if ticket is not None:
            held = np.array([block for _, block in new], np.int32)
            self._pool.share(held)
            self._stored.append(Stored(ticket, held))

    def _settle(self, step_id: int, num_done: int) -> None:
        """Give back blocks whose copies have ended, and tell the store which copies are right."""
        for each in [*self._stored]:
            if each.behind is None and self._has_ended(each, each.ticket, 0.0):
                self._pool.release(each.blocks)
                each.behind = step_id
            if each.behind is not None and (not each.is_right or each.behind <= num_done):
                self._stored.remove(each)
                self._call(each.ticket.settle, each.is_right)

    def _lookup(self, digests: Several[bytes]) -> int:
        found = self._call(self._store.lookup, digests) if digests else 0
        return found if isinstance(found, int) else 0

    def _load(self, fetch: Fetch) -> None:
        blocks = [each[fetch.first :].tolist() for each in fetch.blocks_by_group]
        fetch.ticket = self._call(self._store.load, fetch.digests[fetch.first :], blocks)
        if fetch.ticket is None:
            self._release(fetch)

    def _register(self, fetch: Fetch) -> None:
        for group, blocks in enumerate(fetch.blocks_by_group):
            for place in range(fetch.first, len(blocks)):
                if blocks[place]:
                    self._pool.register(int(blocks[place]), group, fetch.digests[place])
                    self.num_fetched_blocks += 1

    def _release(self, fetch: Fetch) -> None:
        self._fetches.remove(fetch)
        for blocks in fetch.blocks_by_group:
            self._pool.release(blocks[blocks != 0])

    def _has_ended(self, copy: Fetch | Stored, ticket: Ticket, seconds: float) -> bool:
        try:
            return ticket.ends_within(seconds)
        except FAILURES as error:
            if copy.is_right:  # else it is known
                self._note(error)
            copy.is_right = False
            return True

    def _succeeds(self, ticket: LoadTicket) -> bool:
        try:
            ticket.result()
        except FAILURES as error:
            self._note(error)
            return False
        return True

    def _call(self, method: Any, *args: Any) -> Any:
        """What it returns; None where it raises."""
        try:
            return method(*args)
        except FAILURES as error:
            self._note(error)
            return None

    def _note(self, error: BaseException) -> None:
        self.num_failures += 1
        log.debug("a KV store failed", exc_info=error)
        if self.num_failures == 1:
            log.warning("the KV store failed, more is logged at DEBUG: %s", one_line(error))
