"""Where each field of each slot lies in the device state, and the diff that changes it.

The device state is one int32 arena. A step's changes are pairs (index, value) into it, so that one
copy and one scatter bring the device up to date, whatever changed. Floats travel as their bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from octavo.errors import ConfigError
from octavo.messages import TokenSampling
from octavo.steps.slot_fields import FIELDS, Ints, SlotField, SlotIds

_SCALARS: Final = sorted(
    (field for field in FIELDS if field.width == 1),
    key=lambda field: (field.is_float, field.of is not None),
)
"""In the order in which ``put_slot`` writes them."""
_WIDE: Final = [field for field in FIELDS if field.width != 1]
_GIVEN: Final = {field.name for field in FIELDS if field.of is None}
_GIVEN_INTS: Final = [it.name for it in _SCALARS if not it.is_float and it.of is None]
_OWN_INTS: Final = [it.of for it in _SCALARS if not it.is_float and it.of is not None]
_GIVEN_FLOATS: Final = [it.name for it in _SCALARS if it.is_float and it.of is None]
_OWN_FLOATS: Final = [it.of for it in _SCALARS if it.is_float and it.of is not None]


@dataclass(frozen=True, slots=True)
class FieldWords:
    """Where a field lies in the arena: ``width`` words a slot, from ``offset`` on."""

    offset: int
    width: int
    is_float: bool
    is_list: bool
    """Its tensor has an axis for the words, be it only one."""


class StateLayout:
    """The arena's fields for ``num_slots`` slots; the same in the scheduler and on the device.

    One more line than slots is nobody's, ``padding_slot``: rows that only fill up a step run there.
    """

    def __init__(
        self, *, num_slots: int, max_model_len: int, max_blocks: int, num_groups: int
    ) -> None:
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self.num_groups = num_groups
        self.padding_slot = num_slots
        self.fields: dict[str, FieldWords] = {}
        offset = 0
        for field, width in _widths(max_model_len, max_blocks, num_groups):
            self.fields[field.name] = FieldWords(
                offset, width, field.is_float, is_list=field.width != 1
            )
            offset += width * (num_slots + 1)
        if offset >= 2**31:
            raise ConfigError(
                f"max_num_seqs={num_slots} sequences of max_model_len={max_model_len} tokens need "
                f"{offset} words of device state, above the 2147483647 there may be; lower one"
            )
        self.num_words = offset
        scalars = [self.fields[field.name].offset for field in _SCALARS]
        self.scalar_offsets = np.array(scalars, np.int32)
        """Where ``StateDiff.put_slot`` writes one word a slot."""


def state_bytes(*, num_slots: int, max_model_len: int, max_blocks: int, num_groups: int) -> int:
    """What the arena takes, be it more words than a layout may have."""
    words = sum(width for _, width in _widths(max_model_len, max_blocks, num_groups))
    return 4 * words * (num_slots + 1)


def _widths(
    max_model_len: int, max_blocks: int, num_groups: int
) -> Iterator[tuple[SlotField, int]]:
    """All fields, the block tables among them, and how many words a slot has of each."""
    dimensions = {"max_model_len": max_model_len, "max_blocks": max_blocks}
    tables = [SlotField(f"table{group}", width="max_blocks") for group in range(num_groups)]
    for field in (*FIELDS, *tables):
        yield field, dimensions[field.width] if isinstance(field.width, str) else field.width


class StateDiff:
    """Collects writes of one step. No word may be written twice in a step."""

    def __init__(self, layout: StateLayout) -> None:
        self._fields = layout.fields
        self._scalar_offsets = layout.scalar_offsets
        self._indices = [np.zeros(0, np.int32)]
        self._values = [np.zeros(0, np.int32)]

    def put_slot(self, slot: int, sampling: TokenSampling, **given: Any) -> None:
        """Write all of FIELDS for a slot's new sequence; ``given`` are those without ``of``."""
        if given.keys() != _GIVEN:
            lacking, unknown = sorted(_GIVEN - given.keys()), sorted(given.keys() - _GIVEN)
            raise TypeError(f"put_slot lacks {lacking}, and is given {unknown} besides")
        # Which are given is known beforehand: this runs for each sequence that enters, in a few us.
        ints = [given[name] for name in _GIVEN_INTS] + [of(sampling) for of in _OWN_INTS]
        floats = [given[name] for name in _GIVEN_FLOATS] + [of(sampling) for of in _OWN_FLOATS]
        self._indices.append(self._scalar_offsets + np.int32(slot))
        self._values.append(np.array(ints, np.int32))
        self._values.append(np.array(floats, np.float32).view(np.int32))
        for field in _WIDE:
            value = given[field.name] if field.of is None else field.of(sampling)
            words = np.asarray(value, np.float32 if field.is_float else np.int32)
            self.put_span(field.name, slot, 0, words.view(np.int32))

    def put_span(self, name: str, slot: int, start: int, values: Ints) -> None:
        """Write consecutive words of one slot's field."""
        field = self._fields[name]
        if start + len(values) > field.width:
            raise ValueError(f"{name} has {field.width} words, not {start + len(values)}")
        first = field.offset + slot * field.width + start
        self._indices.append(np.arange(first, first + len(values), dtype=np.int32))
        self._values.append(values)

    def put_cells(self, name: str, slots: SlotIds, columns: Ints, values: Ints) -> None:
        """Write one word of many slots' fields."""
        field = self._fields[name]
        self._indices.append((field.offset + slots * field.width + columns).astype(np.int32))
        self._values.append(values)

    def joined(self) -> tuple[Ints, Ints]:
        """Indices and values of all writes so far."""
        return np.concatenate(self._indices), np.concatenate(self._values)
