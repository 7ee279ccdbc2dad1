"""Changes to the logits that both greedy and random rows see, each for the rows that need it.

``rows_G`` are the rows of the scores, ``slots_G`` their slots; the scores are float32 and are
changed in place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.sampling.state import SamplingState


def mask_tokens(scores_RV: Tensor, rows_M: Tensor, bitmask_MW: Tensor) -> None:
    """Ban the tokens whose bit is clear."""
    places = torch.arange(32, dtype=torch.int32, device=scores_RV.device)
    banned_MV = ((bitmask_MW[:, :, None] >> places).bitwise_and_(1) == 0).flatten(1)
    banned_MV = banned_MV[:, : scores_RV.shape[1]]
    scores_RV[rows_M] = scores_RV[rows_M].masked_fill_(banned_MV, -math.inf)


def add_to_tokens(scores_RV: Tensor, rows_G: Tensor, ids_GN: Tensor, amounts_GN: Tensor) -> None:
    """Add to single tokens' scores; an id may come more than once, as padding with amount 0 does.

    Bans are amounts of -inf.
    """
    scores_RV.index_put_((rows_G[:, None], ids_GN), amounts_GN, accumulate=True)


def ban_early_stop(
    scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, state: SamplingState
) -> None:
    """Ban stop ids of rows that have not reached their least length."""
    ids_GK = state.stop_ids_SK[slots_G].to(torch.int64)
    early_G1 = (state.num_tokens_S[slots_G] < state.min_len_S[slots_G])[:, None]
    amounts_GK = torch.zeros_like(ids_GK, dtype=torch.float32)
    amounts_GK.masked_fill_((ids_GK >= 0) & early_G1, -math.inf)
    add_to_tokens(scores_RV, rows_G, ids_GK.clamp_min_(0), amounts_GK)


def penalize(
    scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, state: SamplingState, max_num_tokens: int
) -> None:
    """Repetition over prompt and output; frequency and presence over the output alone.

    Only the scores of tokens in the sequence change, so the work is over the sequence and not over
    the vocabulary: each of its positions computes its token's new score, equal ones alike.
    """
    ids_GL = state.tokens_SL[slots_G, :max_num_tokens].to(torch.int64)
    positions_L = torch.arange(ids_GL.shape[1], device=ids_GL.device)
    is_token_GL = positions_L < state.num_tokens_S[slots_G, None]
    is_output_GL = is_token_GL & (positions_L >= state.prompt_len_S[slots_G, None])
    # Positions past the end repeat the first token: they compute what that one computes.
    ids_GL = torch.where(is_token_GL, ids_GL, ids_GL[:, :1])

    counts_GV = scores_RV.new_zeros(len(rows_G), scores_RV.shape[1])
    counts_GV.scatter_add_(1, ids_GL, is_output_GL.to(torch.float32))
    counts_GL = counts_GV.gather(1, ids_GL)

    scores_GL = scores_RV[rows_G[:, None], ids_GL]
    repetition_G1 = state.repetition_S[slots_G, None]
    scores_GL = torch.where(scores_GL > 0, scores_GL / repetition_G1, scores_GL * repetition_G1)
    scores_GL -= state.frequency_S[slots_G, None] * counts_GL
    scores_GL -= state.presence_S[slots_G, None] * (counts_GL > 0)
    scores_RV[rows_G[:, None], ids_GL] = scores_GL
