"""Ultravox: neighbours of Whisper's encoder, side by side, stand where a prompt has a sound.

Axis suffixes: S samples, M mels, F frames, P positions, R rows, D entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import ReplicatedLinear
from octavo.layers.mel import HOP, LogMel
from octavo.layers.mlp import activation_of
from octavo.layers.norm import RMSNorm
from octavo.layers.speech import SpeechEncoder, num_positions
from octavo.layers.vision import tower_spec
from octavo_plugins.models.llava.language import WrappedLanguageModel
from octavo_plugins.models.ultravox.inputs import num_rows, windows_of
from octavo_registry.model import ModelSpec

EPS = 1e-6


class Ultravox(WrappedLanguageModel):
    """UltravoxModel, each sound of which is as it would be alone.

    The published code fills sounds of a batch up to the longest, and what stands behind a sound
    gets into its last row there.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._config = config = spec.config
        refuse_others(config)
        audio = tower_spec(spec, config["audio_config"])
        self.encoder = SpeechEncoder("audio_tower", audio)
        self.log_mel = LogMel(audio.config["num_mel_bins"], spec.device)
        self._stack = int(config.get("stack_factor", 8))
        self.projector = StackProjector(spec, self.media_row_size)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all windows of all sounds."""
        sounds = [list(self._windows(item["samples"])) for item in items]
        windows = [window for sound in sounds for window in sound]
        features = [features_MF for features_MF, _ in windows]
        heard = [num_positions(frames) for _, frames in windows]
        lengths = [num_positions(features_MF.shape[1]) for features_MF in features]
        x_PD = self.encoder(features, lengths, heard)
        stacked = [self._stacked(window_PD) for window_PD in x_PD.split(lengths)]
        counts = [sum(num_rows(frames, self._config) for _, frames in sound) for sound in sounds]
        rows: Sequence[Tensor] = self.projector(torch.cat(stacked)).split(counts)
        return rows

    def _windows(self, samples_S: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Features [M, F] of each window, and how many of its frames are the sound's.

        Behind all but a first one the published code goes on with zeros, which get into the
        window's last row.
        """
        sizes = windows_of(len(samples_S), self._config)
        features_MF = self.log_mel.of(samples_S, sum(sizes) * HOP)
        yield features_MF[:, : sizes[0]], sizes[0]
        for number, frames in enumerate(sizes[1:], start=1):
            window_MF = features_MF[:, number * sizes[0] :][:, :frames]
            filled = min(sizes[0], num_rows(frames, self._config) * 2 * self._stack)
            yield F.pad(window_MF, (0, filled - frames)), frames

    def _stacked(self, window_PD: Tensor) -> Tensor:
        padded_PD = F.pad(window_PD, (0, 0, 0, -len(window_PD) % self._stack))
        return padded_PD.reshape(-1, self._stack * window_PD.shape[1])

    def encode_bytes(self, num_rows: int) -> int:
        """What the encoder holds for the positions of so many rows."""
        positions = num_rows * self._stack
        return self.encoder.encode_bytes(positions) + self.log_mel.encode_bytes(2 * positions)


def refuse_others(config: Mapping[str, Any]) -> None:
    """Raise for what other checkpoints of the name have."""
    kind = config["audio_config"].get("model_type", "whisper")
    if kind != "whisper":
        raise ModelError(f"audio_config is of a {kind!r}; Ultravox is known with a 'whisper'")
    for name in ("audio_latency_block_size", "num_projector_layers"):
        if config.get(name):
            raise ModelError(f"{name}={config[name]!r} is not known; it must be null or 0")


class StackProjector(nn.Module):
    """Two products from stacked positions to rows; a norm before, and one between or behind."""

    def __init__(self, spec: ModelSpec, row_size: int) -> None:
        super().__init__()
        config = spec.config
        audio = config["audio_config"]
        stacked = audio.get("d_model", audio.get("hidden_size")) * config.get("stack_factor", 8)
        name, inner = "multi_modal_projector", config["hidden_size"]
        kind = config.get("projector_act", "swiglu")
        is_gated = kind == "swiglu"
        self._activation: Callable[[Tensor], Tensor] = (
            swiglu if is_gated else activation_of(kind, name)
        )
        part = tower_spec(spec, config)
        middle = inner // 2 if is_gated else inner
        self.norm = RMSNorm(f"{name}.ln_pre", stacked, EPS, spec=part)
        self.linear_1 = ReplicatedLinear(f"{name}.linear_1", stacked, inner, bias=False, spec=part)
        self.linear_2 = ReplicatedLinear(
            f"{name}.linear_2", middle, row_size, bias=False, spec=part
        )
        # Up to version 0.4.1 it stands behind the second product.
        is_between = config.get("projector_ln_mid", False)
        self.middle = RMSNorm(f"{name}.ln_mid", middle, EPS, spec=part) if is_between else None
        self.last = None if is_between else RMSNorm(f"{name}.ln_post", row_size, EPS, spec=part)

    def forward(self, x_RD: Tensor) -> Tensor:
        """Rows of the language model."""
        x_RD = self._activation(self.linear_1(self.norm(x_RD)))
        x_RD = self.linear_2(x_RD if self.middle is None else self.middle(x_RD))
        return x_RD if self.last is None else self.last(x_RD)


def swiglu(x_RD: Tensor) -> Tensor:
    """Values and their gates side by side, in this order."""
    values_RD, gates_RD = x_RD.chunk(2, dim=-1)
    return F.silu(gates_RD) * values_RD
