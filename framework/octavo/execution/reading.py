"""What a step has sampled, as the host reads it."""

from __future__ import annotations

import numpy as np
import torch

from octavo.sampling.forward import Sampled
from octavo.sampling.logprobs import TokenLogprobTensors
from octavo.sampling.vectors import Vectors
from octavo.steps.plan import LogprobArrays, StepResult, VectorArrays


def read_result(sampled: Sampled) -> StepResult:
    """Copy what was sampled to arrays of the host; waits for the device where it is there."""
    tokens_RK, counts_R, unusable_RK = sampled.tokens_RK, sampled.counts_R, sampled.unusable_RK
    no_tokens = np.zeros((0, 1), np.int32)
    return StepResult(
        tokens_RK=no_tokens if tokens_RK is None else tokens_RK.cpu().numpy().copy(),
        counts_R=None if counts_R is None else counts_R.cpu().numpy(),
        logprobs=_arrays(sampled.logprobs),
        prompt_logprobs=_arrays(sampled.prompt_logprobs),
        unusable_RK=None if unusable_RK is None else unusable_RK.cpu().numpy(),
        vectors=_vector_arrays(sampled.vectors),
    )


def _vector_arrays(vectors: Vectors | None) -> VectorArrays | None:
    if vectors is None:
        return None
    return VectorArrays(
        rows_RW=vectors.rows_RW.cpu().numpy(), is_finite_R=vectors.is_finite_R.cpu().numpy()
    )


def _arrays(tensors: TokenLogprobTensors | None) -> LogprobArrays | None:
    if tensors is None:
        return None
    return LogprobArrays(
        token_ids=tensors.token_ids_RK1.to(torch.int32).cpu().numpy(),
        logprobs=tensors.logprobs_RK1.cpu().numpy(),
        ranks=tensors.ranks_R.to(torch.int32).cpu().numpy(),
    )
