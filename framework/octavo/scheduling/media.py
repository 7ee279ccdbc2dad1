"""Which images, videos and sounds a step encodes, and where their rows are kept on the device.

Rows of encoded items lie in one buffer there, of which the host keeps the books: steps run in
order, so that rows may be given to another item as soon as the step that used them last is planned.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import NamedTuple

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.tables import BlockTables
from octavo.config import EngineConfig
from octavo.errors import PromptError
from octavo.messages import EngineRequest, MediaInput
from octavo.residency.places import Scattered
from octavo.residency.pool import DevicePool, Resident
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.slots import SlotTable
from octavo.steps.loads import EncodeItem, RowCuts
from octavo.steps.slot_fields import Ints, SlotIds

_NONE = np.zeros(0, np.int32)


class MediaSections(NamedTuple):
    """A plan's sections for media among its tokens."""

    positions: Ints = _NONE
    tokens: Ints = _NONE
    rows: Ints = _NONE


class CrossSections(NamedTuple):
    """A plan's sections for media that cross attention reads."""

    rows: Ints = _NONE
    slots: Ints = _NONE


class MediaScheduler:
    """Plans encoding until a budget of rows a step is spent, and keeps what was encoded last.

    ``whole``: the tokens of an item see each other, so that they must run in one step.
    """

    @classmethod
    def of(cls, config: EngineConfig, layout: CacheLayout, *, whole: bool) -> MediaScheduler:
        """As an engine has it; rows that no token stands for are no part of a step's tokens."""
        across = layout.max_cross_rows
        num_rows = config.media.cached_rows(across=across > 0)
        budget = num_rows if across else config.scheduler.max_num_batched_tokens
        return cls(num_rows, budget, whole=whole, max_cross_rows=across)

    def __init__(
        self, num_rows: int, budget: int, *, whole: bool = False, max_cross_rows: int = 0
    ) -> None:
        self.pool: DevicePool[MediaInput, Ints] = DevicePool("media", Scattered(num_rows))
        self.num_reused = 0
        self._budget = budget
        self._max_cross_rows = max_cross_rows
        self._whole = whole
        self._used: set[str] = set()
        """Items that the step being planned uses: they are pinned."""
        self._spent = 0
        """Rows that it encodes, and of items whose keys and values it makes."""
        self._is_stretched = False
        """It has got more tokens than there was room for, for an item to be whole."""

    def refusal(self, request: EngineRequest) -> PromptError | None:
        """Why the media of a request can never run; None: they can."""
        across = [item.cross_rows for item in request.media if item.cross_rows]
        most = self._max_cross_rows
        if len(across) != (most > 0) or max(across, default=0) > most:
            return PromptError(
                f"the prompt has {len(across)} items for cross attention, of {sum(across)} rows; "
                f"this model takes {int(most > 0)}, of {most}"
            )
        return None

    def begin_step(self) -> None:
        """Begin to plan a step; one that was not planned after all has encoded nothing."""
        for key in self._used:
            self.pool.unpin(key)
        self._begin()
        self.pool.drop_loads()

    def clip(self, slot_table: SlotTable, sequence: Sequence, start: int, count: int) -> int:
        """How many of those tokens can run in this step, with the items that they need.

        It may be more tokens, for one item of a step that cannot be split.
        """
        cross = sequence.cross if slot_table.cross_due_S[sequence.slot] else None
        if cross is not None and not self._provide(cross):
            return 0
        for item in sequence.request.media:
            if self._whole:
                count = self._unsplit(item, start, count)
            if item.start >= start + count:
                break
            if item.end > start and not self._provide(item):
                return max(0, item.start - start)
        return count

    def _unsplit(self, item: MediaInput, start: int, count: int) -> int:
        for begin, length in item.spans:
            first, end = max(begin, start), begin + length
            if not first < start + count < end:
                continue
            if first > start:
                return first - start
            if self._is_stretched:
                return 0
            self._is_stretched = True
            return end - start
        return count

    def take_loads(self) -> list[EncodeItem]:
        """Hand the items to encode to a plan."""
        return [EncodeItem(item, rows) for rows, item in self.pool.take_loads()]

    def sections(
        self, slot_table: SlotTable, slots: SlotIds, starts: Ints, query_starts: Ints
    ) -> MediaSections:
        """What a plan says of media among its tokens."""
        if not (slot_table.media_end_S[slots] > starts).any():
            return MediaSections()
        sequences = [slot_table.at(slot) for slot in slots.tolist()]
        tokens, rows = self._places(sequences, starts, query_starts)
        positions = positions_of(sequences, starts, np.diff(query_starts))
        return MediaSections(positions, tokens, rows)

    def fills(self, slot_table: SlotTable, slots: SlotIds, tables: BlockTables) -> CrossSections:
        """What a plan says of cross attention; the rows' blocks are as good as filled then."""
        due = slots[slot_table.cross_due_S[slots]]
        if not len(due):
            return CrossSections()
        slot_table.cross_due_S[due] = False
        items = [(slot, slot_table.at(slot).cross) for slot in due.tolist()]
        kept = [(slot, self.pool.places_of(item.content_hash)) for slot, item in items if item]
        places = [tables.cross_slots(slot, len(found)) for slot, found in kept]
        by_group = [np.concatenate(group) for group in zip(*places, strict=True)]
        rows = np.concatenate([found for _, found in kept])
        return CrossSections(rows, np.concatenate(by_group))

    def cuts(
        self, slot_table: SlotTable, slots: SlotIds, starts: Ints, counts: Ints
    ) -> RowCuts | None:
        """None where a step has no part of an item, or its tokens see only what is before them."""
        if not self._whole or not (slot_table.media_end_S[slots] > starts).any():
            return None
        parts: list[tuple[int, int, int, bool]] = []
        for row, slot in enumerate(slots.tolist()):
            at = int(starts[row])
            end = at + int(counts[row])
            media = slot_table.at(slot).request.media
            for begin, length in sorted(span for item in media for span in item.spans):
                first, last = max(begin, at), min(begin + length, end)
                if first < last:
                    if at < first:
                        parts.append((row, first - at, end - first, False))
                    parts.append((row, last - first, end - last, True))
                    at = last
            if at < end:
                parts.append((row, end - at, 0, False))
        row_of, lens, behinds, whole = zip(*parts, strict=True)
        if not any(whole):
            return None
        return RowCuts(
            np.array(row_of, np.int32),
            np.array(lens, np.int32),
            np.array(behinds, np.int32),
            np.array(whole, np.bool_),
        )

    def _places(
        self, sequences: Listed[Sequence], starts: Ints, query_starts: Ints
    ) -> tuple[Ints, Ints]:
        """Tokens of a step that stand for media, and the buffer's rows that replace them."""
        tokens, rows = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for row, sequence in enumerate(sequences):
            start, first = int(starts[row]), int(query_starts[row])
            end = start + int(query_starts[row + 1]) - first
            for item in sequence.request.media:
                passed = 0
                for begin, length in item.spans:
                    here, stop = max(begin, start), min(begin + length, end)
                    if here < stop:
                        places = np.arange(here, stop, dtype=np.int32)
                        tokens.append(places + np.int32(first - start))
                        kept = self.pool.places_of(item.content_hash)
                        rows.append(kept[passed + here - begin : passed + stop - begin])
                    passed += length
        return np.concatenate(tokens), np.concatenate(rows)

    def after_fault(self) -> None:
        """A step has raised: nobody knows what it has written."""
        self._begin()
        self.pool.after_fault(reload=False)

    def _begin(self) -> None:
        self._used.clear()
        self._spent = 0
        self._is_stretched = False

    def _provide(self, item: MediaInput) -> bool:
        key, num_rows = item.content_hash, item.num_rows
        is_here = key in self.pool
        costs = not is_here or item.cross_rows > 0
        # The last that begins within the budget comes whole: a larger one would never otherwise.
        # What is kept and filled again takes no rows, but counts.
        spent = self._spent
        if costs and (spent >= self._budget or spent + num_rows > self.pool.num_places):
            return False
        if self.pool.provide(Resident(key, num_rows, item)) is None:
            return False
        if key not in self._used:
            self._used.add(key)
            self.pool.pin(key)
            self.num_reused += is_here
        if costs:
            self._spent += num_rows
        return True


def positions_of(sequences: Listed[Sequence], starts: Ints, counts: Ints) -> Ints:
    """Positions of a step's tokens, axis by axis; none where all follow from the device state."""
    axes = 0
    for sequence, start in zip(sequences, starts.tolist(), strict=True):
        own = sequence.positions_AP
        if own is not None and start < own.shape[1]:
            axes = own.shape[0]
    if axes == 0:
        return np.zeros(0, np.int32)
    pieces = []
    for sequence, start, count in zip(sequences, starts.tolist(), counts.tolist(), strict=True):
        own = sequence.positions_AP
        positions_AT = np.broadcast_to(
            np.arange(start, start + count, dtype=np.int32) + np.int32(sequence.position_delta),
            (axes, count),
        )
        if own is not None and start < own.shape[1]:
            end = min(start + count, own.shape[1])
            positions_AT = np.concatenate(
                [own[:, start:end], positions_AT[:, end - start :]], axis=1
            )
        pieces.append(positions_AT)
    return np.concatenate(pieces, axis=1, dtype=np.int32).reshape(-1)
