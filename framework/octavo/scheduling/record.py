"""What the scheduler remembers of a step until its result is there."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.scheduling.sequence import Sequence
from octavo.steps.slot_fields import Ints, SlotIds


class StepRecord(msgspec.Struct, kw_only=True, eq=False):
    """What the host remembers of a step under way, to understand its result."""

    slots: SlotIds
    epochs: NDArray[np.int64]
    ends: Ints
    """Tokens of each row that are in the cache once the step has run, at most."""
    sample_slots: SlotIds
    sample_epochs: NDArray[np.int64]
    prompt_spans: list[tuple[Sequence, int]]
    """Sequences that get prompt logprobs, and how many."""
    membership: int
    """Who ran: while ``SlotTable.membership`` is the same, all rows are still there."""
    void: bool = False
    """Launched behind a step that raised: what it gives, or raises, means nothing."""
