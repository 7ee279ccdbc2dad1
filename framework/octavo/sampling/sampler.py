"""Draws one token a row for a batch of mixed parameters, without a word to the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.engine.messages import TokenSampling
from octavo.sampling.chunks import in_pieces
from octavo.sampling.draw import draw
from octavo.sampling.edits import ban_early_stop, mask_tokens, penalize
from octavo.sampling.features import RowFeature
from octavo.sampling.logprobs import TokenLogprobTensors, token_logprobs
from octavo.sampling.noise import mix
from octavo.sampling.sparse import SparseParameters
from octavo.sampling.state import SampleBatch, SamplingState
from octavo.sampling.uploads import upload, upload_row_sets

_EDITS = (
    RowFeature.BIAS,
    RowFeature.MIN_TOKENS,
    RowFeature.BAD_WORDS,
    RowFeature.PENALTY,
)


@dataclass(slots=True)
class Sampled:
    """Device tensors of one draw."""

    tokens_R: Tensor
    """int64."""
    logprobs: TokenLogprobTensors | None


class Sampler:
    """The order is: bitmask, allowed tokens and bias, least length, bad words, penalties; then the
    likeliest token, or temperature, min_p, top_k, top_p and a draw.

    A row's token depends on its own logits and parameters alone, bit for bit.
    """

    def __init__(self, vocab_size: int, state: SamplingState) -> None:
        self._state = state
        device = state.num_tokens_S.device
        self._sparse = SparseParameters(len(state.num_tokens_S), vocab_size, device)
        self._mixed_ids_V = mix(torch.arange(vocab_size, dtype=torch.int32, device=device))

    def attach(self, slot: int, sampling: TokenSampling) -> None:
        """Take a new sequence's logit_bias, allowed_token_ids and bad words; the last one's go."""
        self._sparse.attach(slot, sampling)

    def sample(self, logits_RV: Tensor, batch: SampleBatch) -> Sampled:
        """Draw a token for each row; log probabilities are of the logits as they came."""
        if not batch.features_R.any() and batch.mask is None:
            tokens_R = logits_RV.argmax(dim=1)
        else:
            tokens_R = self._choose(logits_RV, batch)
        if batch.num_logprobs < 0:
            return Sampled(tokens_R, None)
        return Sampled(tokens_R, token_logprobs(logits_RV, tokens_R, batch.num_logprobs))

    def _choose(self, logits_RV: Tensor, batch: SampleBatch) -> Tensor:
        features_R, device = batch.features_R, logits_RV.device
        random_R = (features_R & RowFeature.RANDOM) != 0
        top_k_R = (features_R & RowFeature.TOP_K) != 0
        edited = [(features_R & feature) != 0 for feature in _EDITS]
        drawn = [random_R & top_k_R, random_R & ~top_k_R]
        row_sets = upload_row_sets([*edited, *drawn], device)
        slots_R = batch.slots_R.to(torch.int64)

        scores_RV = self._edit(logits_RV, batch, slots_R, row_sets[: len(edited)])
        tokens_R = torch.empty_like(slots_R) if random_R.all() else scores_RV.argmax(dim=1)
        for members_R, rows_G in zip(drawn, row_sets[len(edited) :], strict=True):
            features = RowFeature(int(np.bitwise_or.reduce(features_R[members_R], initial=0)))
            for rows in in_pieces(rows_G, scores_RV):
                tokens_R[rows] = draw(
                    scores_RV[rows],
                    slots_R[rows],
                    self._state,
                    features,
                    batch.max_top_k,
                    self._mixed_ids_V,
                )
        return tokens_R

    def _edit(
        self, logits_RV: Tensor, batch: SampleBatch, slots_R: Tensor, row_sets: list[Tensor]
    ) -> Tensor:
        """The logits in float32, changed for the rows that ask for it."""
        scores_RV = logits_RV.to(torch.float32)
        is_edited = batch.mask is not None or any(len(rows_G) for rows_G in row_sets)
        if is_edited and scores_RV is logits_RV and batch.num_logprobs >= 0:
            scores_RV = scores_RV.clone()
        if batch.mask is not None:
            rows_M = upload(batch.mask.rows_M.astype(np.int64), scores_RV.device)
            mask_tokens(scores_RV, rows_M, batch.mask.bitmask_MW)
        biased, early, worded, penalized = row_sets
        if len(biased):
            self._sparse.apply_bias(scores_RV, biased, slots_R[biased])
        if len(early):
            ban_early_stop(scores_RV, early, slots_R[early], self._state)
        if len(worded):
            self._sparse.ban_bad_words(scores_RV, worded, slots_R[worded], self._state)
        for rows_G in in_pieces(penalized, scores_RV):
            penalize(scores_RV, rows_G, slots_R[rows_G], self._state, batch.max_num_tokens)
        return scores_RV
