"""What a step has sampled, as the host reads it."""

from __future__ import annotations

import numpy as np
import torch

from octavo.sampling.forward import Sampled
from octavo.sampling.logprobs import TokenLogprobTensors
from octavo.steps.plan import LogprobArrays, StepResult


def read_result(sampled: Sampled) -> StepResult:
    """Copy what was sampled to arrays of the host; waits for the device where it is there."""
    tokens_R, unusable_R = sampled.tokens_R, sampled.unusable_R
    tokens = np.zeros(0, np.int32)
    if tokens_R is not None:
        tokens = tokens_R.to(torch.int32).cpu().numpy().copy()
    return StepResult(
        tokens_RK=tokens[:, None],
        logprobs=_arrays(sampled.logprobs),
        prompt_logprobs=_arrays(sampled.prompt_logprobs),
        unusable_RK=None if unusable_R is None else unusable_R.cpu().numpy()[:, None],
    )


def _arrays(tensors: TokenLogprobTensors | None) -> LogprobArrays | None:
    if tensors is None:
        return None
    return LogprobArrays(
        token_ids=tensors.token_ids_RK1.to(torch.int32).cpu().numpy(),
        logprobs=tensors.logprobs_RK1.cpu().numpy(),
        ranks=tensors.ranks_R.to(torch.int32).cpu().numpy(),
    )
