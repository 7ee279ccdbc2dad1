"""What the sampler reads of the device state: one row a slot.

Axis suffixes of this folder: S slots, R rows that draw in a step, L tokens of a sequence,
V vocabulary, K stop ids; G rows of a group drawn together, C candidate tokens of a row, N tokens
or words that a row's parameters name, D values of a digit, M rows under a mask, W words of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, kw_only=True)
class SamplingState:
    """Device tensors by slot, views that their owner updates before each draw."""

    tokens_SL: Tensor
    """int32, prompt and output; every id up to the length is in the vocabulary."""
    num_tokens_S: Tensor
    """int32, at least 1; the token being drawn gets this index."""
    prompt_len_S: Tensor
    temperature_S: Tensor
    top_p_S: Tensor
    min_p_S: Tensor
    presence_S: Tensor
    frequency_S: Tensor
    repetition_S: Tensor
    top_k_S: Tensor
    """int32; read only for rows with RowFeature.TOP_K."""
    seed_S2: Tensor
    """int32, low and high word."""
    min_len_S: Tensor
    """int32; stop ids may not be drawn while there are fewer tokens."""
    stop_ids_SK: Tensor
    """int32, padded with -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMask:
    """The tokens that some of a batch's rows may draw."""

    rows_M: NDArray[np.int32]
    bitmask_MW: Tensor
    """int32, token i at bit i % 32 of word i // 32; a clear bit bans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The rows of one draw and what the host knows about them."""

    slots_R: Tensor
    """On the device, any integer type."""
    features_R: NDArray[np.int32]
    """RowFeature bits."""
    num_logprobs: int = -1
    """Largest number that a row wants; -1: none wants any, and the logits may be overwritten."""
    max_top_k: int = 0
    """At least the largest top_k of the rows."""
    max_num_tokens: int
    """At least the longest row's length, at most L."""
    mask: TokenMask | None = None
