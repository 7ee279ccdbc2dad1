"""What the device state has of each slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.limits import MAX_EOS_TOKEN_IDS, MAX_STOP_TOKEN_IDS

Ints = NDArray[np.int32]
SlotIds = NDArray[np.intp]
"""As numpy indexes with: from int32 it would convert each time, at four times the cost."""
STOP_IDS = MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS
"""Room for a request's stop ids and the model's end-of-sequence ids."""
FLOAT_FIELDS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
INT_FIELDS = (
    "num_tokens",
    "computed",
    "prompt_len",
    "min_len",
    "features",
    "top_k",
    "adapter_first",
    "adapter_rank",
    "position_delta",
    "cross_rows",
    "automaton",
    "automaton_state",
    "automaton_depth",
)


@dataclass(frozen=True, slots=True)
class Field:
    """``width`` words a slot, from ``offset`` on."""

    offset: int
    width: int
    is_float: bool = False
