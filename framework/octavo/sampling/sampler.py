"""Draws one token a row, and keeps the parameters that name tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo.engine.messages import TokenSampling
from octavo.sampling.logprobs import TokenLogprobTensors, token_logprobs
from octavo.sampling.sparse import SparseParameters
from octavo.sampling.state import SampleBatch, SamplingState
from octavo.sampling.uploads import upload
from octavo_kernels.row_features import ALL_WORK, Work, work_of
from octavo_kernels.sample import sample


@dataclass(slots=True)
class Sampled:
    """Device tensors of one draw."""

    tokens_R: Tensor
    """int32."""
    logprobs: TokenLogprobTensors | None


class Sampler:
    """What it does with a row's logits is in ``octavo_kernels.sample``."""

    def __init__(self, vocab_size: int, state: SamplingState) -> None:
        self._sparse = SparseParameters(state, vocab_size)

    @property
    def version(self) -> int:
        """Changes where a recorded ``draw`` no longer reads all that there is."""
        return self._sparse.version

    def attach(self, slot: int, sampling: TokenSampling) -> None:
        """Take a new sequence's logit_bias, allowed_token_ids and bad words; the last one's go."""
        self._sparse.attach(slot, sampling)

    def draw(self, logits_RV: Tensor, slots_R: Tensor, work: Work = ALL_WORK) -> Tensor:
        """A token for each row, int32; on CUDA it may be recorded, for later rows of this work."""
        return sample(logits_RV, slots_R, self._sparse.state, work=work)

    def sample(self, logits_RV: Tensor, batch: SampleBatch) -> Sampled:
        """Draw a token for each row; log probabilities are of the logits as they came."""
        mask_rows_R: Tensor | None = None
        mask_MW: Tensor | None = None
        if batch.mask is not None:
            places_R = np.full(len(batch.features_R), -1, np.int32)
            places_R[batch.mask.rows_M] = np.arange(len(batch.mask.rows_M), dtype=np.int32)
            mask_rows_R = upload(places_R, logits_RV.device)
            mask_MW = batch.mask.bitmask_MW
        tokens_R = sample(
            logits_RV,
            batch.slots_R,
            self._sparse.state,
            work=work_of(batch.features_R),
            mask_rows_R=mask_rows_R,
            mask_MW=mask_MW,
        )
        if batch.num_logprobs < 0:
            return Sampled(tokens_R, None)
        return Sampled(tokens_R, token_logprobs(logits_RV, tokens_R, batch.num_logprobs))
