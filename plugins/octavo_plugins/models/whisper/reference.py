"""Whisper of Transformers, as the conformance kit asks it: for tokens behind sounds.

Axis suffixes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from octavo_plugins.models.whisper.inputs import RATE, SAMPLES_PER_POSITION


class Reference(WhisperForConditionalGeneration):  # type: ignore[misc]  # it has no types
    """Hears as many samples as its config has positions for, whatever its processor's usual."""

    def forward(self, tokens_BT: Tensor, sounds_B: Sequence[tuple[np.ndarray, int]]) -> Any:
        """Logits of the decoder; sounds come with their rate."""
        extractor = WhisperFeatureExtractor(
            feature_size=self.config.num_mel_bins, sampling_rate=RATE
        )
        features = extractor(
            [samples for samples, _ in sounds_B],
            sampling_rate=RATE,
            return_tensors="pt",
            padding="max_length",
            max_length=self.config.max_source_positions * SAMPLES_PER_POSITION,
        )
        return super().forward(
            input_features=features["input_features"], decoder_input_ids=tokens_BT
        )
