"""Draws one token a row, and keeps the parameters that name tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.messages import TokenSampling
from octavo.sampling.logprobs import TokenLogprobTensors, token_logprobs
from octavo.sampling.sparse import SparseParameters
from octavo.sampling.state import SampleBatch, SamplingState, TokenMask
from octavo.steps.uploads import upload
from octavo_kernels.row_features import ALL_WORK, Work, work_of
from octavo_kernels.sample import processed, sample


@dataclass(slots=True)
class SampledTokens:
    """Device tensors of one draw."""

    tokens_R: Tensor
    """int32."""
    logprobs: TokenLogprobTensors | None


class Sampler:
    """What it does with a row's logits is in ``octavo_kernels.sample``."""

    def __init__(
        self, vocab_size: int, state: SamplingState, *, logprobs_mode: str = "raw_logprobs"
    ) -> None:
        """``logprobs_mode`` is the option of that name."""
        # Steps are recorded on CUDA alone; a CPU's memory is for those who use the tables.
        self._sparse = SparseParameters(state, vocab_size, at_start=state.tokens_SL.is_cuda)
        self._processes = logprobs_mode.startswith("processed_")
        self._normalizes = logprobs_mode.endswith("_logprobs")

    def attach(self, slot: int, sampling: TokenSampling) -> None:
        """Take a new sequence's logit_bias, allowed_token_ids and bad words; the last one's go."""
        self._sparse.attach(slot, sampling)

    def draw(
        self,
        logits_RV: Tensor,
        slots_R: Tensor,
        work: Work = ALL_WORK,
        mask_rows_R: Tensor | None = None,
        mask_MW: Tensor | None = None,
    ) -> Tensor:
        """A token for each row, int32; on CUDA it may be recorded, for later rows of this work."""
        return sample(
            logits_RV,
            slots_R,
            self._sparse.state,
            work=work,
            mask_rows_R=mask_rows_R,
            mask_MW=mask_MW,
        )

    def sample(self, logits_RV: Tensor, batch: SampleBatch) -> SampledTokens:
        """Draw a token for each row.

        Log probabilities are of the logits as they came, but where a mask counts in them, or of
        what tokens are drawn by.
        """
        mask, work = batch.mask, work_of(batch.features_R)
        lines = () if mask is None else (mask.lines_R, mask.bits_MW)
        tokens_R = self.draw(logits_RV, batch.slots_R, work, *lines)
        if batch.num_logprobs < 0:
            return SampledTokens(tokens_R, None)
        if mask is not None and mask.in_logprobs_R.any():
            logits_RV = _of_allowed(logits_RV, mask)

        def process(rows: slice) -> Tensor:
            mask_rows_R, mask_MW = lines or (None, None)
            return processed(
                logits_RV[rows],
                batch.slots_R[rows],
                self._sparse.state,
                None if mask_rows_R is None else mask_rows_R[rows],
                mask_MW,
            )

        logprobs = token_logprobs(
            logits_RV,
            tokens_R,
            batch.num_logprobs,
            process=process if self._processes else None,
            normalized=self._normalizes,
        )
        return SampledTokens(tokens_R, logprobs)


def _of_allowed(logits_RV: Tensor, mask: TokenMask) -> Tensor:
    """A copy of the logits in which rows whose mask counts lack the tokens that it bans."""
    device = logits_RV.device
    rows_K = upload(np.flatnonzero(mask.in_logprobs_R), device)
    bits_KW = mask.bits_MW[mask.lines_R[rows_K].long()]
    shifts = torch.arange(32, dtype=torch.int32, device=device)
    allowed_KV = (bits_KW[:, :, None] >> shifts & 1).flatten(1)[:, : logits_RV.shape[1]].bool()
    masked_RV = logits_RV.clone()
    masked_RV[rows_K] = logits_RV[rows_K].masked_fill(~allowed_KV, -torch.inf)
    return masked_RV
