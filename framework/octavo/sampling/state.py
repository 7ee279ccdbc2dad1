"""What a draw takes besides the logits; axis suffixes as in ``octavo_kernels.sample.state``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.sample import SamplingState

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMask:
    """The tokens that a batch's rows may draw."""

    lines_R: Tensor
    """int32: which line of the bits is a row's; -1: it may draw any."""
    bits_MW: Tensor
    """int32, token i at bit i % 32 of word i // 32; a clear bit bans."""
    in_logprobs_R: NDArray[np.bool_]
    """Rows whose log probabilities are of these tokens alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The rows of one draw and what the host knows about them."""

    slots_R: Tensor
    """On the device, int32."""
    features_R: NDArray[np.int32]
    """RowFeature bits: those in the device state, or fewer where the host knows that a ban of stop
    ids has ended."""
    num_logprobs: int = -1
    """Largest number that a row wants; -1: none wants any."""
    mask: TokenMask | None = None


__all__ = ["SampleBatch", "SamplingState", "TokenMask"]
