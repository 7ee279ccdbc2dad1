"""Whisper's encoder, which other models that hear have too.

It runs whole on every rank, on the positions of all sounds in one row: sounds of any lengths
together cost no padding. Axis suffixes: N sounds of one length, M mels, F frames, P positions (two
frames each), D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import QKVLinear, ReplicatedLinear
from octavo.layers.loading import Source
from octavo.layers.norm import LayerNorm
from octavo.layers.vision import Parameter, activation_of, attend_runs, tower_spec
from octavo_registry.linear import PlainActivation
from octavo_registry.model import ModelSpec

EPS = 1e-5
MOST_POSITIONS = 24_000
"""Computed at a time: sixteen windows of 30 seconds, enough to fill a GPU."""
OTHER_NAMES = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "activation_function": "hidden_act",
}
"""Names of a config's entries, Whisper's own and those that newer models have."""


def encoder_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config under the newer names."""
    ours = {OTHER_NAMES[name]: value for name, value in config.items() if name in OTHER_NAMES}
    return {**config, **ours}


def num_positions(num_frames: int) -> int:
    """As many as the second convolution makes."""
    return -(-num_frames // 2)


class SpeechEncoder(nn.Module):
    """Two convolutions over frames, positions added, and layers with a norm before each part.

    ``max_source_positions`` positions have an embedding; a sound may have fewer.
    """

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        spec = tower_spec(spec, encoder_config(spec.config))
        config = spec.config
        hidden = config["hidden_size"]
        activation = activation_of(config, "gelu")
        self.conv1 = Convolution(f"{name}.conv1", config["num_mel_bins"], hidden, 1, spec)
        self.conv2 = Convolution(f"{name}.conv2", hidden, hidden, 2, spec)
        self.positions = Parameter(
            f"{name}.embed_positions.weight",
            (config["max_source_positions"], hidden),
            replace(spec, dtype=torch.float32),
        )
        self.layers = nn.ModuleList(
            SpeechLayer(f"{name}.layers.{i}", spec, activation)
            for i in range(config["num_hidden_layers"])
        )
        self.layer_norm = LayerNorm(f"{name}.layer_norm", hidden, EPS, spec=spec)
        self._dtype = spec.dtype
        entries = 4 * (hidden + config["intermediate_size"])
        self.bytes_per_position: int = entries * spec.dtype.itemsize
        """At the widest product; 102 KB for Whisper large in float32, where 98 were measured."""
        self._bytes_kept: int = 2 * hidden * spec.dtype.itemsize

    def encode_bytes(self, num_positions: int) -> int:
        """Peak bytes for so many positions, with some for what is made of them."""
        at_a_time = min(num_positions, MOST_POSITIONS)
        return at_a_time * self.bytes_per_position + num_positions * self._bytes_kept

    def forward(
        self,
        features: Sequence[Tensor],
        lengths: Sequence[int] | None = None,
        heard: Sequence[int] | None = None,
    ) -> Tensor:
        """Positions [P, D] of all sounds, one sound behind the other.

        ``features`` [M, F] of each are ``LogMel``'s. ``lengths`` are the positions that are made of
        each, None: all. ``heard`` are how many of these others attend to, None: all.
        """
        x_PD: Tensor = self.layer_norm(self.states(features, lengths, heard))
        return x_PD

    def states(
        self,
        features: Sequence[Tensor],
        lengths: Sequence[int] | None = None,
        heard: Sequence[int] | None = None,
    ) -> Tensor:
        """Positions [P, D] of all sounds before the last norm."""
        if lengths is None:
            lengths = [num_positions(each.shape[1]) for each in features]
        heard = lengths if heard is None else heard
        return torch.cat(
            [
                self._states(features[these], lengths[these], heard[these])
                for these in _batches(lengths)
            ]
        )

    def _states(
        self, features: Sequence[Tensor], lengths: Sequence[int], heard: Sequence[int]
    ) -> Tensor:
        x_PD = torch.cat(
            [x[:length] for x, length in zip(self._embedded(features), lengths, strict=True)]
        )
        for layer in self.layers:
            x_PD = layer(x_PD, lengths, heard)
        return x_PD

    def _embedded(self, features: Sequence[Tensor]) -> Iterator[Tensor]:
        """Neighbours of one length are computed together."""
        for _, equal in groupby(features, key=lambda each: each.shape):
            features_NMF = torch.stack(list(equal)).to(self._dtype)
            x_NPD = F.gelu(self.conv2(F.gelu(self.conv1(features_NMF)))).mT
            yield from (x_NPD + self.positions.weight[: x_NPD.shape[1]]).to(self._dtype)


def _batches(lengths: Sequence[int]) -> Iterator[slice]:
    """Neighbours of at most ``MOST_POSITIONS`` together, and one at least."""
    begin = total = 0
    for end, length in enumerate(lengths):
        if end > begin and total + length > MOST_POSITIONS:
            yield slice(begin, end)
            begin, total = end, 0
        total += length
    yield slice(begin, len(lengths))


class Convolution(nn.Module):
    """Over three neighbours in time."""

    def __init__(self, name: str, inputs: int, outputs: int, stride: int, spec: ModelSpec) -> None:
        super().__init__()
        self._stride = stride
        self.weight = Parameter(f"{name}.weight", (outputs, inputs, 3), spec)
        self.bias = Parameter(f"{name}.bias", (outputs,), spec)

    def forward(self, x_NDF: Tensor) -> Tensor:
        """One for each ``stride`` of the frames, which silence surrounds."""
        return F.conv1d(x_NDF, self.weight.weight, self.bias.weight, self._stride, padding=1)


class QueryValueBias(QKVLinear):
    """A projection whose keys have no bias in the checkpoint: softmax would not notice it."""

    def __init__(self, name: str, hidden: int, heads: int, *, spec: ModelSpec) -> None:
        head_dim = hidden // heads
        super().__init__(
            name, hidden, heads=heads, kv_heads=heads, head_dim=head_dim, bias=True, spec=spec
        )
        assert self.bias is not None
        self.bias.data.zero_()

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        for source in super().sources():
            if not source.name.endswith(".k_proj.bias"):
                yield source


class SpeechLayer(nn.Module):
    """Attention of a sound's positions to each other, and a feed-forward layer.

    It adds to the hidden state in place.
    """

    def __init__(self, name: str, spec: ModelSpec, activation: PlainActivation) -> None:
        super().__init__()
        config = spec.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        attention = f"{name}.self_attn"
        self._activation = activation
        self.attention_norm = LayerNorm(f"{attention}_layer_norm", hidden, EPS, spec=spec)
        self.qkv_proj = QueryValueBias(
            f"{attention}.qkv_proj", hidden, config["num_attention_heads"], spec=spec
        )
        self.out_proj = ReplicatedLinear(
            f"{attention}.out_proj", hidden, hidden, bias=True, spec=spec
        )
        self.final_norm = LayerNorm(f"{name}.final_layer_norm", hidden, EPS, spec=spec)
        self.fc1 = ReplicatedLinear(f"{name}.fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_PD: Tensor, lengths: Sequence[int], heard: Sequence[int]) -> Tensor:
        """The hidden state after this layer."""
        q_PHE, k_PHE, v_PHE = self.qkv_proj.heads_of(self.attention_norm(x_PD))
        self.out_proj.add_to(x_PD, attend_runs(q_PHE, k_PHE, v_PHE, lengths, heard))
        inner = self.fc1.activated(self.final_norm(x_PD), self._activation)
        self.fc2.add_to(x_PD, inner)
        if x_PD.dtype == torch.float16:  # as trained ones have outliers beyond its range
            most = torch.finfo(torch.float16).max - 1000
            x_PD.clamp_(-most, most)
        return x_PD
