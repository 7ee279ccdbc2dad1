"""What sampling is, in plain torch, vectorised over rows of mixed parameters.

A random choice is said in a token's *gap*: how far its score lies below its row's best, over the
temperature, so never negative and 0 for the best. Its weight is exp(-gap), and leaving a token out
means an infinite gap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_kernels.row_features import EDITS, RowFeature
from octavo_kernels.sample.chunks import in_pieces
from octavo_kernels.sample.likeliest import likeliest
from octavo_kernels.sample.noise import log_exponential, mix, row_keys
from octavo_kernels.sample.state import SamplingState


def sample(
    logits_RV: Tensor,
    slots_R: Tensor,
    state: SamplingState,
    ahead_R: Tensor | None,
    mask_rows_R: Tensor | None,
    mask_MW: Tensor | None,
) -> Tensor:
    """A token id for each row, int32; the logits stay as they are."""
    slots_R = slots_R.long()
    features_R, lens_R = state.features_S[slots_R], _lengths(slots_R, state, ahead_R)
    scores_RV = logits_RV
    if mask_MW is not None or (features_R & int(EDITS | RowFeature.RANDOM)).any():
        scores_RV = _edited(logits_RV, slots_R, lens_R, features_R, state, mask_rows_R, mask_MW)
    random_R = (features_R & RowFeature.RANDOM) != 0
    top_k_R = (features_R & RowFeature.TOP_K) != 0
    tokens_R = torch.empty_like(slots_R) if random_R.all() else scores_RV.argmax(dim=1)
    if random_R.any():
        ids_V = torch.arange(logits_RV.shape[1], dtype=torch.int32, device=logits_RV.device)
        mixed_ids_V = mix(ids_V)
        for group_R in (random_R & top_k_R, random_R & ~top_k_R):
            for rows_G in in_pieces(group_R.nonzero()[:, 0], scores_RV):
                keys = row_keys(state.seed_S2[slots_R[rows_G]], lens_R[rows_G])
                tokens_R[rows_G] = _race(
                    scores_RV[rows_G], slots_R[rows_G], state, keys, mixed_ids_V
                )
    return tokens_R.int()


def processed(
    logits_RV: Tensor,
    slots_R: Tensor,
    state: SamplingState,
    ahead_R: Tensor | None,
    mask_rows_R: Tensor | None,
    mask_MW: Tensor | None,
) -> Tensor:
    """The scores that tokens are sampled by, over the temperature; -inf where none can be sampled.

    Of rows that take the likeliest token, the scores. For a few rows: it is not done in pieces.
    """
    slots_R = slots_R.long()
    features_R, lens_R = state.features_S[slots_R], _lengths(slots_R, state, ahead_R)
    scores_RV = _edited(logits_RV, slots_R, lens_R, features_R, state, mask_rows_R, mask_MW)
    random_R = (features_R & RowFeature.RANDOM) != 0
    top_k_R = (features_R & RowFeature.TOP_K) != 0
    for group_R in (random_R & top_k_R, random_R & ~top_k_R):
        rows_G = group_R.nonzero()[:, 0]
        if len(rows_G):
            scores_GV = scores_RV[rows_G]
            gaps_GC, ids_GC = _gaps(scores_GV, slots_R[rows_G], state)
            kept_GC = torch.isfinite(gaps_GC)
            kept_GV = kept_GC
            if ids_GC is not None:
                kept_GV = torch.zeros_like(scores_GV, dtype=torch.bool)
                kept_GV.scatter_(1, ids_GC, kept_GC)
            scores_GV = scores_GV / state.temperature_S[slots_R[rows_G], None]
            scores_RV = scores_RV.index_copy(0, rows_G, scores_GV.masked_fill_(~kept_GV, -math.inf))
    return scores_RV


def _lengths(slots_R: Tensor, state: SamplingState, ahead_R: Tensor | None) -> Tensor:
    """Tokens before the one that is sampled in each row, with the drafts before the row."""
    lens_R = state.num_tokens_S[slots_R]
    return lens_R if ahead_R is None else (lens_R + ahead_R).clamp_(max=state.tokens_SL.shape[1])


def _edited(
    logits_RV: Tensor,
    slots_R: Tensor,
    lens_R: Tensor,
    features_R: Tensor,
    state: SamplingState,
    mask_rows_R: Tensor | None,
    mask_MW: Tensor | None,
) -> Tensor:
    """The logits in float32, changed for the rows that ask for it."""

    def rows_with(feature: RowFeature) -> Tensor:
        return ((features_R & feature) != 0).nonzero()[:, 0]

    biased, penalized = rows_with(RowFeature.BIAS), rows_with(RowFeature.PENALTY)
    early, worded = rows_with(RowFeature.MIN_TOKENS), rows_with(RowFeature.BAD_WORDS)
    scores_RV = logits_RV.to(torch.float32)
    is_edited = mask_MW is not None or any(map(len, (biased, penalized, early, worded)))
    if is_edited and scores_RV is logits_RV:
        scores_RV = scores_RV.clone()
    if mask_MW is not None and mask_rows_R is not None:
        rows_M = (mask_rows_R >= 0).nonzero()[:, 0]
        _mask_tokens(scores_RV, rows_M, mask_MW[mask_rows_R[rows_M].long()])
    if len(biased):
        _apply_bias(scores_RV, biased, slots_R[biased], state)
    if len(early):
        _ban_early_stop(scores_RV, early, slots_R[early], lens_R[early], state)
    if len(worded) and state.bad_words_SNL is not None:
        _ban_bad_words(
            scores_RV, worded, slots_R[worded], lens_R[worded], state, state.bad_words_SNL
        )
    for rows_G in in_pieces(penalized, scores_RV):
        _penalize(scores_RV, rows_G, slots_R[rows_G], lens_R[rows_G], state)
    return scores_RV


# Edits. ``rows_G`` are rows of the scores, ``slots_G`` their slots, ``lens_G`` the tokens before
# the one that is sampled; scores are changed in place.


def _mask_tokens(scores_RV: Tensor, rows_M: Tensor, bitmask_MW: Tensor) -> None:
    """Ban the tokens whose bit is clear."""
    places = torch.arange(32, dtype=torch.int32, device=scores_RV.device)
    banned_MV = ((bitmask_MW[:, :, None] >> places).bitwise_and_(1) == 0).flatten(1)
    banned_MV = banned_MV[:, : scores_RV.shape[1]]
    scores_RV[rows_M] = scores_RV[rows_M].masked_fill_(banned_MV, -math.inf)


def _add_to_tokens(scores_RV: Tensor, rows_G: Tensor, ids_GN: Tensor, amounts_GN: Tensor) -> None:
    """Add to single tokens' scores; an id may come more than once, as padding with amount 0 does.

    Bans are amounts of -inf.
    """
    scores_RV.index_put_((rows_G[:, None], ids_GN.long()), amounts_GN, accumulate=True)


def _apply_bias(scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, state: SamplingState) -> None:
    """Ban what is not allowed and add logit_bias."""
    if state.allowed_SW is not None:
        _mask_tokens(scores_RV, rows_G, state.allowed_SW[slots_G])
    if state.bias_ids_SN is not None and state.biases_SN is not None:
        _add_to_tokens(scores_RV, rows_G, state.bias_ids_SN[slots_G], state.biases_SN[slots_G])


def _ban_early_stop(
    scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, lens_G: Tensor, state: SamplingState
) -> None:
    """Ban stop ids of rows that have not reached their least length."""
    ids_GK = state.stop_ids_SK[slots_G]
    early_G1 = (lens_G < state.min_len_S[slots_G])[:, None]
    amounts_GK = torch.zeros_like(ids_GK, dtype=torch.float32)
    amounts_GK.masked_fill_((ids_GK >= 0) & early_G1, -math.inf)
    _add_to_tokens(scores_RV, rows_G, ids_GK.clamp_min(0), amounts_GK)


def _ban_bad_words(
    scores_RV: Tensor,
    rows_G: Tensor,
    slots_G: Tensor,
    lens_G: Tensor,
    state: SamplingState,
    bad_words_SNL: Tensor,
) -> None:
    """Ban each word's last token where the sequence, prompt included, ends in the others."""
    words_GNL = bad_words_SNL[slots_G]
    heads_GNL, lasts_GN = words_GNL[:, :, :-1], words_GNL[:, :, -1]
    back_L = torch.arange(-heads_GNL.shape[2], 0, device=scores_RV.device)
    places_GL = lens_G[:, None] + back_L
    tails_GL = state.tokens_SL[slots_G[:, None], places_GL.clamp_min(0)]
    tails_GL = tails_GL.masked_fill(places_GL < 0, -2)  # before the start: equal to no token
    matches_GNL = (heads_GNL == tails_GL[:, None]) | (heads_GNL < 0)
    amounts_GN = torch.zeros_like(lasts_GN, dtype=torch.float32)
    amounts_GN.masked_fill_(matches_GNL.all(dim=2) & (lasts_GN >= 0), -math.inf)
    _add_to_tokens(scores_RV, rows_G, lasts_GN.clamp_min(0), amounts_GN)


def _penalize(
    scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, lens_G: Tensor, state: SamplingState
) -> None:
    """Repetition over prompt and output; frequency and presence over the output alone.

    Only the scores of tokens in the sequence change, so the work is over the sequence and not over
    the vocabulary: each of its positions computes its token's new score, equal ones alike.
    """
    lens_G1 = lens_G[:, None]
    ids_GL = state.tokens_SL[slots_G, : int(lens_G1.max())].to(torch.int64)
    positions_L = torch.arange(ids_GL.shape[1], device=ids_GL.device)
    is_token_GL = positions_L < lens_G1
    is_token_GL &= (ids_GL >= 0) & (ids_GL < scores_RV.shape[1])  # a draft may be anything
    is_output_GL = is_token_GL & (positions_L >= state.prompt_len_S[slots_G, None])
    # Other positions repeat the first token: they compute what that one computes.
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


def _race(
    scores_GV: Tensor,
    slots_G: Tensor,
    state: SamplingState,
    keys: tuple[Tensor, Tensor],
    mixed_ids_V: Tensor,
) -> Tensor:
    """A random token id for each row, as a function of its scores, parameters, seed and position.

    TOP_K belongs to all the rows or to none. top_k keeps exactly k tokens, the lower id where
    scores tie. top_p keeps the fewest tokens that hold at least p of what min_p and top_k left,
    and all that tie with the last of them.
    """
    gaps_GC, ids_GC = _gaps(scores_GV, slots_G, state)
    mixed_ids_GC = mixed_ids_V[None] if ids_GC is None else mixed_ids_V[ids_GC]
    winner_G1 = log_exponential(keys, mixed_ids_GC).add_(gaps_GC).argmin(dim=1, keepdim=True)
    return (winner_G1 if ids_GC is None else ids_GC.gather(1, winner_G1))[:, 0]


def _gaps(scores_GV: Tensor, slots_G: Tensor, state: SamplingState) -> tuple[Tensor, Tensor | None]:
    """The gaps of tokens, and which tokens these are; None: all, by their ids."""
    features_G = state.features_S[slots_G]
    best_G1 = scores_GV.amax(dim=1, keepdim=True)
    ids_GC: Tensor | None = None
    if features_G[0] & RowFeature.TOP_K:
        top_k_G1 = state.top_k_S[slots_G, None]
        ids_GC = likeliest(scores_GV, min(int(top_k_G1.max()), scores_GV.shape[1]))
        gaps_GC = best_G1 - scores_GV.gather(1, ids_GC)
        order_C = torch.arange(ids_GC.shape[1], device=ids_GC.device)
        gaps_GC.masked_fill_(order_C >= top_k_G1, math.inf)
    else:
        gaps_GC = best_G1 - scores_GV
    gaps_GC.mul_(state.temperature_S[slots_G, None].reciprocal())
    if (features_G & RowFeature.MIN_P).any():
        gaps_GC.masked_fill_(gaps_GC > -state.min_p_S[slots_G, None].log(), math.inf)
    if (features_G & RowFeature.TOP_P).any():
        gaps_GC.masked_fill_(gaps_GC > _nucleus(gaps_GC, state.top_p_S[slots_G, None]), math.inf)
    return gaps_GC, ids_GC


def _nucleus(gaps_GC: Tensor, top_p_G1: Tensor) -> Tensor:
    """The least gap [G, 1] up to which tokens hold ``top_p`` of the weight; inf for top_p = 1.

    A radix search over the gap's bits, 11 + 10 + 10, by histograms of weight: linear in C, no sort
    (one of [32, 32000] takes a CPU core 77 ms, this 5) and nothing that the host must look at.
    Weights are integers, whose sums depend on no order, so the cut is the same in every batch.
    """
    # The best weighs 2**32; what weighs less than one unit is beyond every nucleus.
    weights_GC = gaps_GC.neg().exp_().mul_(2.0**32).to(torch.int64)
    missing_G1 = (weights_GC.sum(dim=1, keepdim=True) * top_p_G1.double()).ceil_().to(torch.int64)
    bits_GC = gaps_GC.view(torch.int32)  # of floats that are not negative: ordered as they are
    digits_GC = torch.empty_like(weights_GC)
    cut_G1 = torch.zeros_like(missing_G1)
    for shift, num_bits in ((20, 11), (10, 10), (0, 10)):
        digits_GC.copy_(bits_GC).bitwise_right_shift_(shift).bitwise_and_((1 << num_bits) - 1)
        upto_GD = weights_GC.new_zeros(len(weights_GC), 1 << num_bits)
        upto_GD = upto_GD.scatter_add_(1, digits_GC, weights_GC).cumsum(dim=1)
        digit_G1 = (upto_GD < missing_G1).sum(dim=1, keepdim=True)
        below_G1 = upto_GD.gather(1, (digit_G1 - 1).clamp_min_(0))
        missing_G1 -= below_G1.masked_fill_(digit_G1 == 0, 0)
        cut_G1 += digit_G1 << shift
        weights_GC.mul_(digits_GC.eq_(digit_G1))
    return cut_G1.to(torch.int32).view(torch.float32).masked_fill_(top_p_G1 >= 1.0, math.inf)
