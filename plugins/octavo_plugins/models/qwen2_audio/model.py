"""Qwen2-Audio: means of two neighbours of Whisper's encoder stand where a prompt has a sound.

The reference encodes 30 seconds of any sound and attends to what is sound; here silence behind a
sound is not encoded, which gives the same.

Axis suffixes: S samples, M mels, F frames, P positions, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.mel import HOP, LogMel
from octavo.layers.speech import SpeechEncoder, num_positions
from octavo.layers.vision import tower_spec
from octavo_plugins.models.llava.language import WrappedLanguageModel
from octavo_plugins.models.qwen2_audio.inputs import window_samples
from octavo_registry.model import ModelSpec

SILENT_FRAMES = 3
"""Behind a sound, of which the convolutions hear the first ones, and the last is cut off."""


class Qwen2Audio(WrappedLanguageModel):
    """Qwen2AudioForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        audio = tower_spec(spec, spec.config["audio_config"])
        self.encoder = SpeechEncoder("audio_tower", audio)
        self.log_mel = LogMel(audio.config["num_mel_bins"], spec.device)
        self.projector = ReplicatedLinear(
            "multi_modal_projector.linear",
            audio.config["d_model"],
            self.media_row_size,
            bias=True,
            spec=audio,
        )
        self._most_samples = window_samples(spec.config)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all sounds, none of which costs more than it is long."""
        features, lengths = [], []
        for item in items:
            samples_S = item["samples"]
            num_frames = -(-len(samples_S) // HOP)
            padded = min((num_frames + SILENT_FRAMES) * HOP, self._most_samples)
            features.append(self.log_mel.of(samples_S, padded))
            lengths.append(num_positions(num_frames))
        x_PD = self.encoder.states(features, lengths)
        pairs = [x[: len(x) // 2 * 2].unflatten(0, (-1, 2)) for x in x_PD.split(lengths)]
        means_PD = self.encoder.layer_norm(torch.cat(pairs).mean(1))
        rows: Sequence[Tensor] = self.projector(means_PD).split([len(each) for each in pairs])
        return rows

    def encode_bytes(self, num_rows: int) -> int:
        """What the encoder holds for four frames a row."""
        return self.encoder.encode_bytes(2 * num_rows) + self.log_mel.encode_bytes(4 * num_rows)
