"""A Llama whose prompts have rows of two encoders: one for pictures, one for sounds.

Axis suffixes: N pictures or sounds, C channels, H height, W width, P places or slices, E entries of
a slice, D hidden, M mels, F frames, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.mel import LogMel
from octavo.layers.norm import LayerNorm
from octavo.layers.vision import Parameter, VisionLayer, normalised, tower_spec
from octavo_plugins.models.llama.model import Llama
from octavo_plugins.models.tiny_omni.inputs import MERGED, num_places, window_samples
from octavo_registry.model import ModelSpec


class TinyOmni(Llama):
    """OctavoOmniForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        vision = tower_spec(spec, spec.config["vision_config"])
        audio = tower_spec(spec, spec.config["audio_config"])
        hidden = self.media_row_size = spec.config["hidden_size"]
        self._slice = audio.config["slice_size"]
        self._window = window_samples(audio.config)
        self._dtype = spec.dtype
        self.vision = Eye("vision", vision, hidden)
        self.frames = Parameter("frames.weight", (vision.config["num_frames"], hidden), vision)
        self.audio = Ear("audio", audio, hidden)
        self.log_mel = LogMel(audio.config["num_mel_bins"], spec.device)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all pictures and frames at once, and of all sounds."""
        seen = iter(self._look([item["pixels"] for item in items if "pixels" in item]))
        heard = iter(self._listen([item["samples"] for item in items if "samples" in item]))
        return [next(seen if "pixels" in item else heard) for item in items]

    def _look(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """A picture is a clip of one frame."""
        if not pictures:
            return []
        half = torch.tensor(0.5, device=pictures[0].device)
        rows_NRD = self.vision(normalised(torch.cat(list(pictures)), half, half, self._dtype))
        return [
            (rows_FRD + self.frames.weight[: len(rows_FRD), None]).flatten(0, 1)
            for rows_FRD in rows_NRD.split([len(each) for each in pictures])
        ]

    def _listen(self, sounds: Sequence[Tensor]) -> list[Tensor]:
        """Silence follows what is shorter than the encoder's time."""
        if not sounds:
            return []
        features_NMF = torch.stack([self.log_mel.of(each, self._window) for each in sounds])
        slices_NPE = features_NMF.mT.unflatten(1, (-1, self._slice)).flatten(2)
        return list(self.audio(slices_NPE.to(self._dtype)))

    def encode_bytes(self, num_rows: int) -> int:
        """The larger of what the two hold for so many rows."""
        spectrum = self._slice * self.log_mel.bytes_per_frame
        largest: int = max(self.vision.bytes_per_place, self.audio.bytes_per_place + spectrum)
        return num_rows * MERGED * largest


class Encoder(nn.Module):
    """A transformer over places, of which neighbours are merged to rows."""

    def __init__(
        self, name: str, spec: ModelSpec, num_places: int, row_size: int, entries: int
    ) -> None:
        super().__init__()
        config = spec.config
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.positions = Parameter(f"{name}.positions.weight", (num_places, hidden), spec)
        self.layers = nn.ModuleList(
            VisionLayer(f"{name}.layers.{index}", spec, "gelu", eps)
            for index in range(config["num_hidden_layers"])
        )
        self.norm = LayerNorm(f"{name}.norm", hidden, eps, spec=spec)
        merged = MERGED * hidden
        self.linear_1 = ReplicatedLinear(f"{name}.linear_1", merged, row_size, bias=True, spec=spec)
        self.linear_2 = ReplicatedLinear(
            f"{name}.linear_2", row_size, row_size, bias=True, spec=spec
        )
        held = 6 * hidden + 2 * config["intermediate_size"]
        self.bytes_per_place = 4 * entries + held * spec.dtype.itemsize
        """What is held of the ``entries`` that a place is made of, and in a layer of the stream,
        queries, keys, values and what is inside its MLP."""

    def rows_of(self, x_NPD: Tensor) -> Tensor:
        """Rows [N, R, D] of what is at the places."""
        x_NPD = (x_NPD + self.positions.weight).contiguous()  # few places of pictures are not
        for layer in self.layers:
            x_NPD = layer(x_NPD)
        merged_NRD = self.norm(x_NPD).unflatten(1, (-1, MERGED)).flatten(2)
        rows_NRD: Tensor = self.linear_2(self.linear_1.activated(merged_NRD, "gelu"))
        return rows_NRD


class Eye(Encoder):
    """Convolutions, each of which halves a picture's sides, and places that see one another."""

    def __init__(self, name: str, spec: ModelSpec, row_size: int) -> None:
        config = spec.config
        places = num_places(config)
        # The pixels as floats, and what the first two convolutions make of them.
        pixels = config["image_size"] ** 2 // places
        entries = pixels * (2 * 3 + 3 * config["channels"][0] // 4)
        super().__init__(name, spec, places, row_size, entries)
        channels = (3, *config["channels"], config["hidden_size"])
        self.convolutions = nn.ModuleList(
            Halving(f"{name}.convolutions.{index}", *sizes, spec)
            for index, sizes in enumerate(pairwise(channels))
        )

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Rows of pixels from -1 to 1."""
        for convolution in self.convolutions:
            x_NCHW = F.gelu(convolution(x_NCHW))
        squares = x_NCHW.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 3, 5, 1)
        return self.rows_of(squares.flatten(1, 4))


class Halving(nn.Module):
    """A convolution at every second pixel."""

    def __init__(self, name: str, inputs: int, outputs: int, spec: ModelSpec) -> None:
        super().__init__()
        self.weight = Parameter(f"{name}.weight", (outputs, inputs, 3, 3), spec)
        self.bias = Parameter(f"{name}.bias", (outputs,), spec)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Half as many rows and columns."""
        return F.conv2d(x_NCHW, self.weight.weight, self.bias.weight, stride=2, padding=1)


class Ear(Encoder):
    """Slices of a spectrum that hear one another."""

    def __init__(self, name: str, spec: ModelSpec, row_size: int) -> None:
        config = spec.config
        entries = config["slice_size"] * config["num_mel_bins"]
        super().__init__(name, spec, config["num_slices"], row_size, entries)
        hidden = config["hidden_size"]
        self.slices = ReplicatedLinear(f"{name}.slices", entries, hidden, bias=True, spec=spec)

    def forward(self, slices_NPE: Tensor) -> Tensor:
        """Rows of slices."""
        return self.rows_of(self.slices(slices_NPE))
