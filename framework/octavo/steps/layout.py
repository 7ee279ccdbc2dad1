"""Where each field of each slot lies in the device state, and the diff that changes it.

The device state is one int32 arena. A step's changes are pairs (index, value) into it, so that one
copy and one scatter bring the device up to date, whatever changed. Floats travel as their bits.
"""

from __future__ import annotations

import numpy as np

from octavo.errors import ConfigError
from octavo.steps.slot_fields import FLOAT_FIELDS, INT_FIELDS, STOP_IDS, Field, Ints, SlotIds
from octavo_registry.guided import MOST_DEPTH


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
        num_lines = num_slots + 1
        widths = dict.fromkeys((*INT_FIELDS, *FLOAT_FIELDS), 1)
        widths |= {"seed": 2, "stop_ids": STOP_IDS, "tokens": max_model_len}
        widths |= {"automaton_stack": MOST_DEPTH}
        widths |= {f"table{group}": max_blocks for group in range(num_groups)}
        self.fields: dict[str, Field] = {}
        offset = 0
        for name, width in widths.items():
            self.fields[name] = Field(offset, width, name in FLOAT_FIELDS)
            offset += width * num_lines
        if offset >= 2**31:
            raise ConfigError(
                f"max_num_seqs={num_slots} sequences of max_model_len={max_model_len} tokens need "
                f"{offset} words of device state, above the 2147483647 there may be; lower one"
            )
        self.num_words = offset
        self.scalar_offsets = np.array(
            [self.fields[name].offset for name in (*INT_FIELDS, *FLOAT_FIELDS)], np.int32
        )


class StateDiff:
    """Collects writes of one step. No word may be written twice in a step."""

    def __init__(self, layout: StateLayout) -> None:
        self._fields = layout.fields
        self._scalar_offsets = layout.scalar_offsets
        self._indices = [np.zeros(0, np.int32)]
        self._values = [np.zeros(0, np.int32)]

    def put_scalars(self, slot: int, ints: list[int], floats: list[float]) -> None:
        """Write a slot's fields of width 1, in the order of INT_FIELDS and FLOAT_FIELDS."""
        self._indices.append(self._scalar_offsets + np.int32(slot))
        self._values.append(np.array(ints, np.int32))
        self._values.append(np.array(floats, np.float32).view(np.int32))

    def put_span(self, name: str, slot: int, start: int, values: Ints) -> None:
        """Write consecutive words of one slot's field."""
        field = self._fields[name]
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
