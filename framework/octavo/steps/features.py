"""Which parts of the sampler a request needs, decided on the host before anything is launched."""

from __future__ import annotations

from typing import Final

from octavo.limits import MAX_BAD_WORDS
from octavo.messages import TokenSampling
from octavo.steps.slot_fields import FIELDS
from octavo_kernels.row_features import THRESHOLDS, RowFeature

LEAST_TEMPERATURE = 1e-5
"""Below it the likeliest token is taken."""

MAX_BAD_WORD_FORMS = 2 * MAX_BAD_WORDS
"""Entries of ``bad_word_ids``: each word may come with and without a space before it."""

_BY_VALUE: Final = [(int(it.feature), it.of, it.neutral) for it in FIELDS if it.feature and it.of]


def features_of(sampling: TokenSampling) -> RowFeature:
    """What the sampler must do for a request; a greedy one has no use for thresholds."""
    bits = 0
    for feature, of, neutral in _BY_VALUE:
        if of(sampling) != neutral:
            bits |= feature
    features = RowFeature(bits)
    if sampling.temperature >= LEAST_TEMPERATURE:
        features |= RowFeature.RANDOM
    else:
        features &= ~THRESHOLDS
    if sampling.logit_bias or sampling.allowed_token_ids is not None:
        features |= RowFeature.BIAS
    if sampling.bad_word_ids:
        features |= RowFeature.BAD_WORDS
    if sampling.min_tokens > 0 and (sampling.stop_token_ids or sampling.eos_token_ids):
        features |= RowFeature.MIN_TOKENS
    return features
