"""Voxtral: neighbours of Whisper's encoder, side by side, stand where a prompt has a sound.

Axis suffixes: S samples, M mels, F frames, P positions, R rows, D entries of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from octavo.layers.mel import HOP, LogMel
from octavo.layers.speech import SpeechEncoder
from octavo.layers.vision import tower_spec
from octavo_plugins.models.llava.language import Projector, WrappedLanguageModel
from octavo_plugins.models.qwen2_audio.inputs import window_samples
from octavo_registry.model import ModelSpec


class Voxtral(WrappedLanguageModel):
    """VoxtralForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        audio = tower_spec(spec, spec.config["audio_config"])
        self.encoder = SpeechEncoder("audio_tower", audio)
        self.log_mel = LogMel(audio.config["num_mel_bins"], spec.device)
        self._stacked: int = audio.config["intermediate_size"]
        self._per_row: int = self._stacked // audio.config["hidden_size"]
        self.projector = Projector(spec, self._stacked, self.media_row_size, bias=False)
        self._window_samples = window_samples(spec.config)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all sounds; a sound's last window is filled up with silence that is heard too."""
        windows: list[Tensor] = []
        counts = []
        for item in items:
            samples_S = item["samples"]
            size = -(-len(samples_S) // self._window_samples) * self._window_samples
            features_MF = self.log_mel.of(samples_S, size)
            found = features_MF.split(self._window_samples // HOP, dim=1)
            windows += found
            counts.append(len(found))
        stacked_RD = self.encoder(windows).reshape(-1, self._stacked)
        rows_RD = self.projector(stacked_RD)
        per_window = len(rows_RD) // len(windows)
        rows: Sequence[Tensor] = rows_RD.split([count * per_window for count in counts])
        return rows

    def encode_bytes(self, num_rows: int) -> int:
        """What the encoder holds for the positions of so many rows."""
        positions = num_rows * self._per_row
        return self.encoder.encode_bytes(positions) + self.log_mel.encode_bytes(2 * positions)
