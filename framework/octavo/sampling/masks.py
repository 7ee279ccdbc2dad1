"""The tokens that rows of logits may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.steps.uploads import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMask:
    """Bits for rows of logits; axis suffixes as in ``octavo_kernels.sample.state``."""

    lines_R: Tensor
    """int32: which line of the bits is a row's; -1: it may have any token."""
    bits_MW: Tensor
    """int32, token i at bit i % 32 of word i // 32; a clear bit bans."""
    in_logprobs_R: NDArray[np.bool_]
    """Rows whose log probabilities are of these tokens alone."""

    def in_logprobs(self, logits_RV: Tensor) -> Tensor:
        """The logits that log probabilities are of: a copy, if a row's are of some tokens alone."""
        if not self.in_logprobs_R.any():
            return logits_RV
        device = logits_RV.device
        rows_K = upload(np.flatnonzero(self.in_logprobs_R), device)
        bits_KW = self.bits_MW[self.lines_R[rows_K].long()]
        shifts = torch.arange(32, dtype=torch.int32, device=device)
        allowed_KV = (bits_KW[:, :, None] >> shifts & 1).flatten(1)[:, : logits_RV.shape[1]].bool()
        masked_RV = logits_RV.clone()
        masked_RV[rows_K] = logits_RV[rows_K].masked_fill(~allowed_KV, -torch.inf)
        return masked_RV
