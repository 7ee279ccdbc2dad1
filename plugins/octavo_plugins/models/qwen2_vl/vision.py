"""The encoder of Qwen2-VL: patches of any number of frames, each attending to its own frame's.

Axis suffixes: P patches of all items, M merged squares, D hidden, H heads, E entries of a head, F
frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import QKVLinear, ReplicatedLinear
from octavo.layers.norm import LayerNorm
from octavo.layers.vision import Parameter, activation_of
from octavo_registry.model import ModelSpec

THETA = 10000.0


class VisionEncoder(nn.Module):
    """``visual`` of the checkpoint."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, patch = config["embed_dim"], config["patch_size"]
        shape = (hidden, config.get("in_channels", 3), config["temporal_patch_size"], patch, patch)
        self.patch_embed = Parameter(f"{name}.patch_embed.proj.weight", shape, spec)
        self.blocks = nn.ModuleList(
            VisionBlock(f"{name}.blocks.{i}", spec) for i in range(config["depth"])
        )
        self.merger = Merger(f"{name}.merger", spec)
        self._merge = config["spatial_merge_size"]
        quarter = hidden // config["num_heads"] // 4
        self._frequencies_F: Tensor
        frequencies_F = THETA ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
        self.register_buffer("_frequencies_F", frequencies_F.to(spec.device), persistent=False)

    def forward(self, patches_PCSHW: Tensor, grids: Sequence[tuple[int, int, int]]) -> Tensor:
        """Merged squares [M, D] of all items, one behind the other."""
        weight = self.patch_embed.weight
        x_PD = F.linear(patches_PCSHW.flatten(1), weight.flatten(1))
        angles = [self._angles_PF(grid) for grid in grids]
        angles_PF = torch.cat(angles)
        cos_P1E, sin_P1E = (
            torch.cat([each, each], -1).unsqueeze(1).float()
            for each in (angles_PF.cos(), angles_PF.sin())
        )
        frames = [height * width for time, height, width in grids for _ in range(time)]
        for block in self.blocks:
            x_PD = block(x_PD, cos_P1E, sin_P1E, frames)
        merged_MD: Tensor = self.merger(x_PD)
        return merged_MD

    def _angles_PF(self, grid: tuple[int, int, int]) -> Tensor:
        """Half of the frequencies turn by the row, half by the column; squares stand together."""
        time, height, width = grid
        merge, device = self._merge, self._frequencies_F.device
        rows, columns = (
            side.reshape(height // merge, merge, width // merge, merge).transpose(1, 2).flatten()
            for side in torch.meshgrid(
                torch.arange(height, device=device),
                torch.arange(width, device=device),
                indexing="ij",
            )
        )
        turned = [torch.outer(side.float(), self._frequencies_F) for side in (rows, columns)]
        return torch.cat(turned, dim=1).repeat(time, 1)


class VisionBlock(nn.Module):
    """Attention within frames, and a feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["embed_dim"], config["num_heads"]
        inner = int(hidden * config["mlp_ratio"])
        self._activation = activation_of(config, "quick_gelu")
        self.norm1 = LayerNorm(f"{name}.norm1", hidden, 1e-6, spec=spec)
        self.qkv = QKVLinear(
            f"{name}.attn.qkv",
            hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            bias=True,
            spec=spec,
            stored_fused=True,
        )
        self.proj = ReplicatedLinear(f"{name}.attn.proj", hidden, hidden, bias=True, spec=spec)
        self.norm2 = LayerNorm(f"{name}.norm2", hidden, 1e-6, spec=spec)
        self.fc1 = ReplicatedLinear(f"{name}.mlp.fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.mlp.fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_PD: Tensor, cos_P1E: Tensor, sin_P1E: Tensor, frames: list[int]) -> Tensor:
        """The hidden state after this block."""
        q_PHE, k_PHE, v_PHE = self.qkv.heads_of(self.norm1(x_PD))
        q_PHE, k_PHE = (_turned(each, cos_P1E, sin_P1E) for each in (q_PHE, k_PHE))
        attended = [
            F.scaled_dot_product_attention(*(each.transpose(0, 1).unsqueeze(0) for each in frame))
            .squeeze(0)
            .transpose(0, 1)
            .flatten(1)
            for frame in zip(*(each.split(frames) for each in (q_PHE, k_PHE, v_PHE)), strict=True)
        ]
        x_PD = x_PD + self.proj(torch.cat(attended))
        return x_PD + self.fc2(self._activation(self.fc1(self.norm2(x_PD))))


def _turned(x_PHE: Tensor, cos_P1E: Tensor, sin_P1E: Tensor) -> Tensor:
    """Rotated in float32, as the angles are."""
    x = x_PHE.float()
    first, second = x.chunk(2, dim=-1)
    return (x * cos_P1E + torch.cat([-second, first], dim=-1) * sin_P1E).to(x_PHE.dtype)


class Merger(nn.Module):
    """Squares of neighbouring patches become tokens of the language model."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        patch_size = config["embed_dim"]
        self._size = patch_size * config["spatial_merge_size"] ** 2
        self.ln_q = LayerNorm(f"{name}.ln_q", patch_size, 1e-6, spec=spec)
        self.first = ReplicatedLinear(f"{name}.mlp.0", self._size, self._size, bias=True, spec=spec)
        self.last = ReplicatedLinear(
            f"{name}.mlp.2", self._size, config["hidden_size"], bias=True, spec=spec
        )

    def forward(self, x_PD: Tensor) -> Tensor:
        """Tokens [M, D]."""
        squares = self.ln_q(x_PD).view(-1, self._size)
        tokens_MD: Tensor = self.last(F.gelu(self.first(squares)))
        return tokens_MD
