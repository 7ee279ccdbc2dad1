"""What a row asks of the sample kernel, in bits; free of torch, so that a scheduler may use it."""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray


class RowFeature(enum.IntFlag):
    """One bit for each part of the sampler that costs work; a row without a bit pays nothing."""

    RANDOM = enum.auto()
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    MIN_P = enum.auto()
    PENALTY = enum.auto()
    BIAS = enum.auto()
    """``logit_bias`` or ``allowed_token_ids``."""
    BAD_WORDS = enum.auto()
    MIN_TOKENS = enum.auto()


THRESHOLDS = RowFeature.TOP_K | RowFeature.TOP_P | RowFeature.MIN_P
EDITS = RowFeature.PENALTY | RowFeature.BIAS | RowFeature.BAD_WORDS | RowFeature.MIN_TOKENS


class Work(enum.IntFlag):
    """What must be launched for a batch; the kernels read on the device what each row needs."""

    FEATURES = enum.auto()
    """Some row has a feature."""
    THRESHOLD_ROWS = enum.auto()
    EDITED_THRESHOLD_ROWS = enum.auto()
    """Some row has both edits and thresholds: 4 bytes a logit of scratch memory."""


ALL_WORK = Work.FEATURES | Work.THRESHOLD_ROWS | Work.EDITED_THRESHOLD_ROWS


def work_of(features_R: NDArray[np.int32]) -> Work:
    """The least work that serves rows of these RowFeature bits."""
    work = Work(0)
    if features_R.any():
        work |= Work.FEATURES
        has_thresholds_R = (features_R & int(THRESHOLDS)) != 0
        if has_thresholds_R.any():
            work |= Work.THRESHOLD_ROWS
            if (features_R[has_thresholds_R] & int(EDITS)).any():
                work |= Work.EDITED_THRESHOLD_ROWS
    return work
