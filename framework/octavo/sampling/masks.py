"""The tokens that rows of logits may have; axis suffixes as in ``octavo_kernels.sample.state``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenMask(NamedTuple):
    """Bits, and whose they are."""

    lines_R: Tensor
    """int32: which line of the bits is a row's; -1: it may have any token."""
    bits_MW: Tensor
    """int32, token i at bit i % 32 of word i // 32; a clear bit bans."""

    def of_allowed(self, logits_RV: Tensor, rows_K: Tensor) -> Tensor:
        """A copy of the logits in which some rows lack the tokens that these may not have."""
        bits_KW = self.bits_MW[self.lines_R[rows_K].long()]
        shifts = torch.arange(32, dtype=torch.int32, device=logits_RV.device)
        allowed_KV = (bits_KW[:, :, None] >> shifts & 1).flatten(1)[:, : logits_RV.shape[1]].bool()
        masked_RV = logits_RV.clone()
        masked_RV[rows_K] = logits_RV[rows_K].masked_fill(~allowed_KV, -torch.inf)
        return masked_RV
