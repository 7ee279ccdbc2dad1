"""What the device state has of each slot: one table, which layout, diff and tensors follow.

A sampling parameter that is a number needs a line here and no more in the framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo.limits import MAX_EOS_TOKEN_IDS, MAX_STOP_TOKEN_IDS
from octavo.messages import TokenSampling
from octavo_kernels.row_features import RowFeature
from octavo_registry.guided import MOST_DEPTH

Ints = NDArray[np.int32]
SlotIds = NDArray[np.intp]
"""As numpy indexes with: from int32 it would convert each time, at four times the cost."""
STOP_IDS: Final = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS
"""Room for a request's stop ids and the model's end-of-sequence ids."""


@dataclass(frozen=True, slots=True)
class SlotField:
    """A value of each slot: int32 or float32, one word or several.

    The kernel's tensor of a field has its name, with the axes behind: ``top_p_S`` of ``top_p``.
    """

    name: str
    of: Callable[[TokenSampling], Any] | None = None
    """The value that follows from a request's parameters; None: ``put_slot`` is given it by name.
    Several words may be fewer than the field has; the others stay as they are."""
    is_float: bool = False
    width: int | str = 1
    """Words, or the name of a dimension of ``StateLayout``."""
    feature: RowFeature | None = None
    """What a row has whose value is not ``neutral``."""
    neutral: float = 0


FIELDS: Final = (
    SlotField("num_tokens"),
    SlotField("computed"),
    SlotField("prompt_len"),
    SlotField("min_len"),
    SlotField("max_len"),
    SlotField("num_drafts"),
    SlotField("features"),
    SlotField("temperature", lambda s: s.temperature, is_float=True),
    SlotField("top_k", lambda s: max(s.top_k, 0), feature=RowFeature.TOP_K),
    SlotField("top_p", lambda s: s.top_p, True, feature=RowFeature.TOP_P, neutral=1.0),
    SlotField("min_p", lambda s: s.min_p, True, feature=RowFeature.MIN_P),
    SlotField("presence", lambda s: s.presence_penalty, True, feature=RowFeature.PENALTY),
    SlotField("frequency", lambda s: s.frequency_penalty, True, feature=RowFeature.PENALTY),
    SlotField(
        "repetition", lambda s: s.repetition_penalty, True, feature=RowFeature.PENALTY, neutral=1.0
    ),
    SlotField("adapter_first"),
    SlotField("adapter_rank"),
    SlotField("position_delta"),
    SlotField("cross_rows"),
    SlotField("state_line"),
    SlotField("automaton"),
    SlotField("automaton_state"),
    SlotField("automaton_depth"),
    SlotField("seed", width=2),
    SlotField("stop_ids", width=STOP_IDS),
    SlotField("tokens", width="max_model_len"),
    SlotField("automaton_stack", width=MOST_DEPTH),
)
