"""Which parts of the sampler a request needs, decided on the host before anything is launched."""

from __future__ import annotations

from octavo.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from octavo.messages import TokenSampling
from octavo_kernels.row_features import RowFeature

LEAST_TEMPERATURE = 1e-5
"""Below it the likeliest token is taken."""

MAX_BAD_WORD_FORMS = 2 * MAX_BAD_WORDS
"""Entries of ``bad_word_ids``: each word may come with and without a space before it."""


def features_of(sampling: TokenSampling) -> RowFeature:
    """What the sampler must do for a request; a greedy one has no use for top_k, top_p, min_p."""
    features = RowFeature(0)
    if sampling.temperature >= LEAST_TEMPERATURE:
        features |= RowFeature.RANDOM
        if sampling.top_k > 0:
            features |= RowFeature.TOP_K
        if sampling.top_p < 1.0:
            features |= RowFeature.TOP_P
        if sampling.min_p > 0.0:
            features |= RowFeature.MIN_P
    penalties = (sampling.presence_penalty, sampling.frequency_penalty)
    if any(penalties) or sampling.repetition_penalty != 1.0:
        features |= RowFeature.PENALTY
    if sampling.logit_bias or sampling.allowed_token_ids is not None:
        features |= RowFeature.BIAS
    if sampling.bad_word_ids:
        features |= RowFeature.BAD_WORDS
    if sampling.min_tokens > 0 and (sampling.stop_token_ids or sampling.eos_token_ids):
        features |= RowFeature.MIN_TOKENS
    return features


__all__ = [
    "LEAST_TEMPERATURE",
    "MAX_BAD_WORD_FORMS",
    "MAX_BAD_WORD_TOKENS",
    "RowFeature",
    "features_of",
]
