"""Pixtral's encoder: images of any size, whose heads turn by a patch's row and column.

Axis suffixes: P patches of all images, C channels, H rows, W columns, D hidden, E entries of a
head, F frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from octavo.layers.linear import QKVLinear, ReplicatedLinear
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles, rope_parameters
from octavo.layers.vision import Parameter, attend_runs, embed_patches
from octavo_registry.model import ModelSpec

DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
"""What checkpoints leave out of a vision_config."""
EPS = 1e-5
Grid = tuple[int, int]
"""Patches down and across."""


class PixtralEncoder(nn.Module):
    """``vision_tower`` of the checkpoint, up to the layer that the language model asks for."""

    def __init__(self, name: str, spec: ModelSpec, layers: Sequence[int]) -> None:
        super().__init__()
        config = spec.config
        hidden, patch = config["hidden_size"], config["patch_size"]
        shape = (hidden, config["num_channels"], patch, patch)
        self._patch = patch
        self._wanted = layers
        self.patch_conv = Parameter(f"{name}.patch_conv.weight", shape, spec)
        self.ln_pre = RMSNorm(f"{name}.ln_pre", hidden, EPS, spec=spec)
        self.angles = AxialAngles(hidden // config["num_attention_heads"], spec)
        self.layers = nn.ModuleList(
            PixtralLayer(f"{name}.transformer.layers.{i}", spec) for i in range(max(layers))
        )

    def grid_of(self, pixels_1CHW: Tensor) -> Grid:
        """Patches of an image."""
        _, _, height, width = pixels_1CHW.shape
        return height // self._patch, width // self._patch

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        """Patches [P, D] of all images row by row, the wanted layers' states side by side."""
        grids = [self.grid_of(each) for each in images]
        weight = self.patch_conv.weight
        embedded = [embed_patches(each, weight, None)[0] for each in images]
        x_PD = self.ln_pre(torch.cat(embedded))
        angles = self.angles(grids)
        runs = [height * width for height, width in grids]
        states = {}
        for number, layer in enumerate(self.layers):
            if number in self._wanted:
                states[number] = x_PD.clone()  # which the layer adds to
            x_PD = layer(x_PD, angles, runs)
        states[len(self.layers)] = x_PD
        return torch.cat([states[number] for number in self._wanted], dim=-1)


class AxialAngles(nn.Module):
    """Every other frequency turns by a patch's row, the ones between by its column."""

    def __init__(self, head_dim: int, spec: ModelSpec) -> None:
        super().__init__()
        theta = float(rope_parameters(spec.config)["rope_theta"])
        exponents_F = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._frequencies_F: Tensor
        frequencies_F = (1.0 / theta**exponents_F).to(spec.device)
        self.register_buffer("_frequencies_F", frequencies_F, persistent=False)

    def forward(self, grids: Sequence[Grid]) -> Angles:
        """Cosines and sines [P, 1, E]."""
        angles_PF = torch.cat([self._of(grid) for grid in grids])
        angles_P1E = torch.cat([angles_PF, angles_PF], dim=-1).unsqueeze(1)
        return angles_P1E.cos(), angles_P1E.sin()

    def _of(self, grid: Grid) -> Tensor:
        height, width = grid
        frequencies_F = self._frequencies_F
        numbers = torch.arange(height * width, device=frequencies_F.device)
        rows_PF = torch.outer((numbers // width).float(), frequencies_F[0::2])
        columns_PF = torch.outer((numbers % width).float(), frequencies_F[1::2])
        return torch.cat([rows_PF, columns_PF], dim=-1)


class PixtralLayer(nn.Module):
    """Attention of an image's patches to each other, and a gated feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.attention_norm = RMSNorm(f"{name}.attention_norm", hidden, EPS, spec=spec)
        self.qkv_proj = QKVLinear(
            f"{name}.attention.qkv_proj",
            hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            bias=False,
            spec=spec,
        )
        self.o_proj = ReplicatedLinear(
            f"{name}.attention.o_proj", hidden, hidden, bias=False, spec=spec
        )
        self.ffn_norm = RMSNorm(f"{name}.ffn_norm", hidden, EPS, spec=spec)
        self.feed_forward = GatedMLP(
            f"{name}.feed_forward",
            hidden,
            config["intermediate_size"],
            activation=config["hidden_act"],
            bias=False,
            spec=spec,
        )

    def forward(self, x_PD: Tensor, angles: Angles, runs: Sequence[int]) -> Tensor:
        """The hidden state after this layer, in place; ``runs`` are the images' patches."""
        q_PHE, k_PHE, v_PHE = self.qkv_proj.heads_of(self.attention_norm(x_PD))
        q_PHE, k_PHE = _turned(q_PHE, angles), _turned(k_PHE, angles)
        self.o_proj.add_to(x_PD, attend_runs(q_PHE, k_PHE, v_PHE, runs))
        return self.feed_forward.add_to(x_PD, self.ffn_norm(x_PD))


def _turned(x_PHE: Tensor, angles: Angles) -> Tensor:
    """The reference rounds cosines and sines to the model's dtype."""
    cos_P1E, sin_P1E = (each.to(x_PHE.dtype) for each in angles)
    first, second = x_PHE.chunk(2, dim=-1)
    return x_PHE * cos_P1E + torch.cat([-second, first], dim=-1) * sin_P1E
