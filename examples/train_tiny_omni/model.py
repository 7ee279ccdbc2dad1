"""octavo/tiny with an eye and an ear, for training; parameters have their names in the checkpoint.

The places of a picture, which convolutions make, and slices of sound see one another in a
transformer. Four neighbours become one row, which stands in a prompt like the embedding of a token.
Axes in names: N pictures or sounds, C channels, H height, W width, P places or slices, F entries of
a slice, D hidden, T tokens, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from examples.train_tiny.model import Llama, ModelConfig
from examples.train_tiny_omni.batches import PICTURE_ROWS, UNKNOWN, Batch
from examples.train_tiny_omni.clips import DIRECTIONS
from examples.train_tiny_omni.features import (
    BANDS,
    HOP,
    MERGED,
    NUM_FRAMES,
    RATE,
    SIDE,
    SLICE,
    SOUND_ENTRIES,
    SOUND_SLICES,
    sound_slices,
)
from examples.train_tiny_omni.pictures import COLOURS, SHAPES
from examples.train_tiny_omni.sounds import COUNTS, TONES
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB_SIZE = 2056
EPS = 1e-5
CHANNELS = (24, 48, 96)
"""Between the convolutions, each of which halves a picture's sides."""

SPREAD = 0.1
"""The variance of places, so that missing them counts as much as missing the rest."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int


VISION = EncoderConfig(
    hidden_size=160, intermediate_size=640, num_hidden_layers=4, num_attention_heads=5
)
AUDIO = EncoderConfig(
    hidden_size=96, intermediate_size=384, num_hidden_layers=4, num_attention_heads=3
)


@dataclass(frozen=True, kw_only=True)
class OmniConfig(ModelConfig):
    """Entries of config.json."""

    vocab_size: int = VOCAB_SIZE
    vision: EncoderConfig = VISION
    audio: EncoderConfig = AUDIO

    def as_json(self) -> dict[str, Any]:
        entries = super().as_json()
        vision, audio = entries.pop("vision"), entries.pop("audio")
        pictures = {"image_size": SIDE, "channels": CHANNELS, "num_frames": NUM_FRAMES}
        sounds = {
            "sampling_rate": RATE,
            "num_mel_bins": BANDS,
            "hop_length": HOP,
            "slice_size": SLICE,
            "num_slices": SOUND_SLICES,
        }
        return entries | {
            "architectures": ["OctavoOmniForConditionalGeneration"],
            "model_type": "octavo_omni",
            "vision_config": {**vision, **pictures, "layer_norm_eps": EPS},
            "audio_config": {**audio, **sounds, "layer_norm_eps": EPS},
        }


class Attention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x_NPD: Tensor) -> Tensor:
        q, k, v = (
            each(x_NPD).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_NPD: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x_NPD)))


class Layer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.self_attn = Attention(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.mlp = MLP(config)

    def forward(self, x_NPD: Tensor) -> Tensor:
        x_NPD = x_NPD + self.self_attn(self.layer_norm1(x_NPD))
        return x_NPD + self.mlp(self.layer_norm2(x_NPD))


class Encoder(nn.Module):
    """Rows [N, P / 4, hidden size of the language model] of what is at P places."""

    def __init__(self, config: EncoderConfig, num_places: int, hidden: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(num_places, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.linear_1 = nn.Linear(MERGED * config.hidden_size, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, x_NPD: Tensor) -> Tensor:
        x_NPD = x_NPD + self.positions.weight
        for layer in self.layers:
            x_NPD = layer(x_NPD)
        rows_NRD = self.norm(x_NPD).unflatten(1, (-1, MERGED)).flatten(2)
        return self.linear_2(F.gelu(self.linear_1(rows_NRD)))


class Eye(Encoder):
    """Pixels [N, C, H, W] from -1 to 1 as rows."""

    def __init__(self, config: EncoderConfig, hidden: int) -> None:
        super().__init__(config, MERGED * PICTURE_ROWS, hidden)
        channels = (3, *CHANNELS, config.hidden_size)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
            for inputs, outputs in pairwise(channels)
        )

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        x_NCHW = pixels_NCHW
        for convolution in self.convolutions:
            x_NCHW = F.gelu(convolution(x_NCHW))
        # squares of two by two places, which become one row, behind one another
        squares = x_NCHW.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 3, 5, 1)
        return super().forward(squares.flatten(1, 4))


class Ear(Encoder):
    """Slices [N, P, F] of spectra as rows."""

    def __init__(self, config: EncoderConfig, hidden: int) -> None:
        super().__init__(config, SOUND_SLICES, hidden)
        self.slices = nn.Linear(SOUND_ENTRIES, config.hidden_size)

    def forward(self, slices_NPF: Tensor) -> Tensor:
        return super().forward(self.slices(slices_NPF))


class Output(NamedTuple):
    logits_TV: Tensor
    seen_NRD: Tensor
    """Rows of all pictures and frames."""
    heard_NRD: Tensor


class Omni(Llama):
    """Logits for every token of a line."""

    def __init__(self, config: OmniConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        self.vision = Eye(config.vision, hidden)
        self.frames = nn.Embedding(NUM_FRAMES, hidden)
        self.audio = Ear(config.audio, hidden)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("positions.weight"):
                nn.init.normal_(parameter, std=0.3)  # about as large as what they are added to
            elif name == "frames.weight":
                nn.init.normal_(parameter, std=0.02)
            elif parameter.dim() == 4:
                nn.init.kaiming_normal_(parameter)

    def forward(self, batch: Batch) -> Output:
        cos_TE, sin_TE = self._angles(batch.positions_T)
        x_TD = self.model.embed_tokens(batch.ids_T)
        seen_NRD, heard_NRD = self.look(batch), self.listen(batch)
        for places_M, rows_NRD in ((batch.seen_M, seen_NRD), (batch.heard_M, heard_NRD)):
            rows_MD = rows_NRD.flatten(0, 1)[: len(places_M)]
            x_TD = x_TD.index_copy(0, places_M, rows_MD.to(x_TD.dtype))
        for layer in self.model.layers:
            x_TD = layer(x_TD, cos_TE, sin_TE, batch.borders)
        logits_TV = F.linear(self.model.norm(x_TD), self.model.embed_tokens.weight)
        return Output(logits_TV, seen_NRD, heard_NRD)

    def look(self, batch: Batch) -> Tensor:
        """Rows of all pictures and frames, which know their number in a clip."""
        rows_NRD = self.vision(batch.pixels.float() / 127.5 - 1)
        return rows_NRD + self.frames.weight[batch.steps_F, None]

    def listen(self, batch: Batch) -> Tensor:
        """Rows of all sounds."""
        with torch.autocast("cuda", enabled=False):
            slices_NPF = sound_slices(batch.samples.float() / 32767)
        return self.audio(slices_NPF)


class Hints(nn.Module):
    """What rows are of, asked of the encoders directly: through the language model alone they
    begin to learn late. None of this is saved."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.shape = nn.Linear(hidden, len(SHAPES))
        self.colour = nn.Linear(hidden, len(COLOURS))
        self.middle = nn.Linear(hidden, 2)
        self.direction = nn.Linear(2 * hidden, len(DIRECTIONS))
        self.count = nn.Linear(hidden, len(COUNTS))
        self.pitch = nn.Linear(hidden, len(TONES))

    def forward(self, output: Output, batch: Batch) -> Tensor:
        """The mean of the losses of all that can be asked."""
        # Rows are as small as embeddings, and the language model, too, looks at them normalised.
        seen_ND, heard_ND = (
            F.layer_norm(rows_NRD.mean(1), rows_NRD.shape[2:])
            for rows_NRD in (output.seen_NRD, output.heard_NRD)
        )
        first, last, ways = batch.moves.unbind(1)
        asked = (
            (self.shape(seen_ND), batch.figures[:, 0]),
            (self.colour(seen_ND), batch.figures[:, 1]),
            (self.direction(torch.cat([seen_ND[first], seen_ND[last]], dim=1)), ways),
            (self.count(heard_ND), batch.beeps[:, 0]),
            (self.pitch(heard_ND), batch.beeps[:, 1]),
        )
        losses = [
            F.cross_entropy(logits.float(), labels, ignore_index=UNKNOWN, reduction="sum")
            / (labels != UNKNOWN).sum().clamp(min=1)
            for logits, labels in asked
        ]
        losses.append(F.mse_loss(self.middle(seen_ND).float(), batch.middles) / SPREAD)
        return torch.stack(losses).mean()
