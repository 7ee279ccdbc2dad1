"""Giving sequences a slot and blocks, and taking them back: admission, forks, preemption, swap."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from octavo.cache.pool import BlockPool
from octavo.cache.prefix import cross_digests, extend_chain, find_all, longest_prefix
from octavo.cache.state_lines import ZEROS, StateLines
from octavo.cache.tables import BlockTables
from octavo.config import EngineConfig
from octavo.residency.pool import provide_all
from octavo.scheduling.sequence import Sequence, SwappedBlocks
from octavo.scheduling.slots import SlotTable
from octavo.scheduling.swap_space import SwapSpace
from octavo.steps.layout import StateDiff, StateLayout
from octavo.steps.loads import BlockMoves
from octavo.steps.plan import Attached
from octavo_kernels.row_features import RowFeature

log = logging.getLogger(__name__)

WARNING_SECONDS = 1.0
"""Least time between two warnings of preemption; their count goes on."""
_ATTACHED = int(RowFeature.BIAS | RowFeature.BAD_WORDS)


@dataclass(slots=True)
class NextPlan:
    """What the next plan will carry besides its rows."""

    diff: StateDiff
    moves: BlockMoves = field(default_factory=BlockMoves)
    attach: list[Attached] = field(default_factory=list)
    detach: list[int] = field(default_factory=list)


Clip = Callable[[Sequence, int, int], int]
"""Cuts a count of tokens, of a sequence, from a first one on."""


class Placement:
    """Owns slots, block tables and swap space of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        tables: BlockTables,
        slot_table: SlotTable,
        state: StateLayout,
        num_swap_blocks: int,
        lines: StateLines | None = None,
    ) -> None:
        self.lines = lines
        self.tables = tables
        self.slot_table = slot_table
        self.pool: BlockPool = tables.pool
        self.num_preemptions = 0
        self.num_swaps = 0
        self._next_warning_seconds = 0.0
        self.num_prefix_hit_tokens = 0
        self.num_prefix_query_tokens = 0
        self._state = state
        cache = config.cache
        self._size_option = (
            "num_blocks"
            if cache.num_blocks is not None
            else "kv_cache_memory_gib"
            if cache.kv_cache_memory_gib is not None
            else "gpu_memory_utilization or kv_cache_memory_gib"
        )
        """What gives the pool more blocks."""
        self._caching = config.cache.enable_prefix_caching
        self._swap = config.scheduler.preemption_mode == "swap"
        self._processors = bool(config.logits_processors)
        # Chunks under way whose windows are not given back yet, and the one being placed.
        self._lookahead = config.scheduler.max_num_batched_tokens * (
            config.scheduler.async_depth + 1
        )
        self.swap_space = SwapSpace(tables, lines, num_swap_blocks)
        self.next_plan = NextPlan(StateDiff(state))
        self.offer: Callable[[int, list[bytes], list[int]], None] | None = None
        """Takes a group's full blocks, which are not findable yet."""

    def take_next_plan(self) -> NextPlan:
        """Hand what is collected to a plan and begin the next one."""
        taken = self.next_plan
        self.swap_space.plan_is_taken()
        self.next_plan = NextPlan(StateDiff(self._state))
        return taken

    def place(self, sequence: Sequence, budget: int, clip: Clip) -> int:
        """Give a waiting sequence a slot and blocks for its first tokens, if there is room now.

        Returns how many tokens it may compute in this step, at most ``budget``; ``clip`` says how
        many have their media. One that forks has none to compute.
        """
        places = provide_all(sequence.needs)
        if not self.slot_table.can_enter or places is None:
            return 0
        if self.lines is not None and self.lines.num_available == 0:
            return 0
        sequence.places = places
        num_tokens = len(sequence.tokens)
        if self._caching:
            self.digests_of(sequence)
        if sequence.swapped is not None:
            start = self._place_swapped(sequence, sequence.swapped)
        else:
            start = self._place_forked(sequence)
            if start < 0:
                start = self._place_fresh(sequence)
        if start < 0:
            return 0
        for pool, resident in sequence.needs:
            pool.pin(resident.key)
        if sequence.placed_seconds is None:
            sequence.placed_seconds = time.monotonic()
        slot = sequence.slot
        count = clip(sequence, start, min(num_tokens - start, budget))
        if self.lines is not None and sequence.media_end <= start:
            count = int(self.lines.cut(np.array([start]), np.array([count]))[0])
        self.tables.grow(
            np.array([slot], np.intp), np.array([start + count], np.int32), self.next_plan.diff
        )
        if self.attaches(slot):
            self.next_plan.attach.append(self._attached(sequence))
        self.leave_family(sequence)
        return count

    def leave_family(self, sequence: Sequence) -> None:
        """Need nothing of its leader from now on."""
        leader, sequence.leader = sequence.leader, None
        if self.lines is not None and leader is not None and leader.slot >= 0:
            self.lines.count_fork(leader.slot)

    def digests_of(self, sequence: Sequence) -> list[bytes]:
        """Return the digests of a waiting sequence's full blocks."""
        extend_chain(
            sequence.digests,
            sequence.chain_seed,
            sequence.tokens,
            self.tables.layout.block_tokens,
            sequence.media_marks,
        )
        return sequence.digests

    def most_cached_blocks(self, sequence: Sequence) -> int:
        """How many blocks of a waiting sequence may be found rather than computed."""
        if not self._caching or sequence.wants_prompt_logprobs:
            return 0
        # At least one token must be computed, or there would be no logits to sample from.
        return (len(sequence.tokens) - 1) // self.tables.layout.block_tokens

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether a sequence fits that shares no block."""
        num_tokens = len(sequence.tokens)
        return self._fits(self.tables.layout.blocks_for(num_tokens, self._lookahead))

    def start_over(self, waiting: Iterable[Sequence]) -> None:
        """Forget what blocks and their copies hold, and what the device was to be told of rows.

        No sequence has a slot.
        """
        for sequence in waiting:
            if sequence.swapped is not None:
                self.forget_swapped(sequence)
                sequence.prompt_logprobs.clear()
        self.forget_prefixes()
        self.next_plan = NextPlan(
            StateDiff(self._state),
            detach=list(range(self._state.num_slots)) if self._processors else [],
        )

    def forget_prefixes(self) -> None:
        """Let nothing be found that is cached now."""
        self.pool.forget_all()
        if self.lines is not None:
            self.lines.forget_all()

    def _attached(self, sequence: Sequence) -> Attached:
        sampling = sequence.request.sampling
        if not self._processors:
            return Attached(sequence.slot, sampling)
        return Attached(sequence.slot, sampling, sequence.prompt_len, sequence.tokens)

    def attaches(self, slot: int) -> bool:
        """Whether a slot's samples depend on more than numbers: tokens by name, or processors."""
        return self._processors or bool(self.slot_table.features_S[slot] & _ATTACHED)

    def preempt(self, sequence: Sequence, *, after_fault: bool = False) -> None:
        """Take slot and blocks; results under way for it are dropped and sampled again later.

        ``after_fault``: not for want of memory, but because a step that it may build on raised.
        """
        slot = sequence.slot
        num_tokens, swapped = int(self.slot_table.confirmed_S[slot]), None
        # Where all that is known is computed, a hidden row is held, which is not copied.
        if self._swap and not after_fault and num_tokens < self.slot_table.known_S[slot]:
            swapped = self.swap_space.copy_out(slot, num_tokens, self.next_plan.moves)
            self.num_swaps += swapped is not None
        sequence.swapped = swapped
        if swapped is None:
            sequence.prompt_logprobs.clear()
        self.num_preemptions += 1
        now = time.monotonic()
        if not after_fault and now >= self._next_warning_seconds:
            self._next_warning_seconds = now + WARNING_SECONDS
            log.warning(
                "the KV cache is full: request %s %s; %d preemptions so far; raise %s, or lower "
                "max_num_seqs",
                sequence.request.request_id,
                "was swapped to host memory" if swapped else "will be computed again",
                self.num_preemptions,
                self._size_option,
            )
        self.vacate(sequence)

    def vacate(self, sequence: Sequence) -> None:
        """Take a sequence off its slot and give its blocks back."""
        if self._processors:
            self.next_plan.detach.append(sequence.slot)
        for pool, resident in sequence.needs:
            pool.unpin(resident.key)
        if self.lines is not None:
            self.lines.release(sequence.slot)
        self.tables.release(sequence.slot)
        self.slot_table.leave(sequence)

    def register_blocks(self, sequence: Sequence, first: int, num_full: int) -> None:
        """Make blocks ``first:num_full`` of a running sequence findable by what they hold."""
        slot, tables = sequence.slot, self.tables
        block_tokens = tables.layout.block_tokens
        tokens = self.slot_table.tokens_SL[slot, : num_full * block_tokens]
        extend_chain(
            sequence.digests, sequence.chain_seed, tokens, block_tokens, sequence.media_marks
        )
        for group in range(len(tables.windows)):
            if group in tables.cross_groups:
                continue
            begin = max(first, int(tables.first_GS[group, slot]))
            blocks = tables.tables_GSB[group, slot, begin:num_full].tolist()
            if self.offer is not None:
                self.offer(group, sequence.digests[begin:num_full], blocks)
            for block, digest in zip(blocks, sequence.digests[begin:], strict=False):
                self.pool.register(block, group, digest)
        if self.lines is not None:
            self.lines.register(slot, num_full * block_tokens, sequence.digests, block_tokens)
        if first == 0:  # its first step has run, which has filled these
            for group, digests in zip(
                tables.cross_groups, self._cross_digests(sequence), strict=True
            ):
                blocks = tables.tables_GSB[group, slot, : len(digests)].tolist()
                for block, digest in zip(blocks, digests, strict=True):
                    self.pool.register(block, group, digest)

    def forget_swapped(self, sequence: Sequence) -> None:
        """Free the host memory of a sequence that ends while it waits."""
        if sequence.swapped is not None:
            self.swap_space.forget(sequence.swapped)
            sequence.swapped = None

    def _fits(self, num_blocks: int) -> bool:
        return num_blocks <= self.pool.num_available

    def _place_fresh(self, sequence: Sequence) -> int:
        layout = self.tables.layout
        num_tokens = len(sequence.tokens)
        usable = self._caching and not sequence.wants_prompt_logprobs
        max_blocks = self.most_cached_blocks(sequence)
        length, blocks_by_group = longest_prefix(
            self.pool, layout, sequence.digests, max_blocks, self.lines
        )
        adopted = np.concatenate([np.zeros(0, np.int32), *blocks_by_group])
        adopted = adopted[adopted != 0]
        needed = layout.blocks_for(num_tokens, self._lookahead) - len(adopted)
        if not self._fits(max(needed, 0) + self.pool.num_unreferenced(adopted)):
            return -1
        start = length * layout.block_tokens
        if usable and sequence.placed_seconds is None:  # again after a preemption it is not news
            self.num_prefix_query_tokens += num_tokens
            self.num_prefix_hit_tokens += start
        if not sequence.reported:
            sequence.num_cached_tokens = min(start, sequence.prompt_len)
        source = ZEROS
        if self.lines is not None and length:
            source = self.lines.find(sequence.digests[length - 1]) or ZEROS
        slot = self._enter(sequence, start, source)
        self.tables.adopt(slot, blocks_by_group, self.next_plan.diff)
        self._place_cross(sequence)
        return start

    def _place_forked(self, sequence: Sequence) -> int:
        """Share the prompt's blocks with the leader, and sample from the hidden row it has left.

        One that was preempted since has left none.
        """
        leader = sequence.leader
        start = sequence.prompt_len
        slot_table, tables = self.slot_table, self.tables
        if leader is None or leader.slot < 0 or not slot_table.family_held_S[leader.slot]:
            return -1
        line = ZEROS if self.lines is None else self.lines.family_line(leader.slot)
        if line is None:
            return -1
        # One block a group: the copy of a partial block, or the first of its own.
        if not tables.can_fork(leader.slot, start) or not self._fits(len(tables.windows)):
            return -1
        sequence.num_cached_tokens = start
        slot = self._enter(sequence, start, line, confirmed=False)
        slot_table.held_S[slot] = len(slot_table.sequences) + leader.slot
        tables.fork(leader.slot, slot, start, self.next_plan.diff, self.next_plan.moves)
        return start

    def _place_swapped(self, sequence: Sequence, swapped: SwappedBlocks) -> int:
        # As for a fresh one, so that a sequence alone always fits: a pool holds one whole context.
        if not self.has_room_for(sequence):
            return -1
        slot = self._enter(sequence, swapped.num_tokens, swapped_line=swapped.line)
        blocks_by_group = self.swap_space.copy_in(swapped, self.next_plan.moves)
        self.tables.start(slot, blocks_by_group, self.next_plan.diff)
        self._place_cross(sequence)
        sequence.swapped = None
        return swapped.num_tokens

    def _enter(
        self,
        sequence: Sequence,
        start: int,
        source: int = ZEROS,
        *,
        swapped_line: int | None = None,
        confirmed: bool = True,
    ) -> int:
        """Give a sequence a slot, and a line that begins as ``source``, or as what was swapped."""
        lines, next_plan = self.lines, self.next_plan
        if lines is None:
            return self.slot_table.enter(sequence, start, next_plan.diff, confirmed=confirmed)
        moves = next_plan.moves.lines
        line = (
            lines.take(source, moves)
            if swapped_line is None
            else lines.take_swapped(swapped_line, moves)
        )
        slot = self.slot_table.enter(
            sequence, start, next_plan.diff, confirmed=confirmed, state_line=line
        )
        lines.hold(slot, line, start)
        return slot

    def _place_cross(self, sequence: Sequence) -> None:
        """Give a sequence the blocks of its encoded media: those that hold it, or new ones.

        There is room: it was admitted as if none held it.
        """
        tables, slot = self.tables, sequence.slot
        if not sequence.num_cross_rows:
            return
        by_group = self._cross_digests(sequence)
        found = [
            find_all(self.pool, group, digests)
            for group, digests in zip(tables.cross_groups, by_group, strict=True)
        ]
        known = [blocks for blocks in found if blocks is not None]
        if len(known) == len(found):
            for blocks in known:
                self.pool.share(blocks)
        else:
            known = [self.pool.allocate(len(digests)) for digests in by_group]
            self.slot_table.cross_due_S[slot] = True
        tables.start_cross(slot, known, self.next_plan.diff)

    def _cross_digests(self, sequence: Sequence) -> list[list[bytes]]:
        """Digests of the blocks of a sequence's encoded media, by cross group."""
        groups = self.tables.layout.groups
        return [
            cross_digests(
                sequence.chain_seed, -(-sequence.num_cross_rows // groups[group].block_tokens)
            )
            for group in self.tables.cross_groups
        ]
