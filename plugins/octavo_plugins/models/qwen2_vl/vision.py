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
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.layers.rotary import Angles
from octavo.layers.vision import Parameter, activation_of, attend_runs
from octavo_kernels.rotary import rotary_
from octavo_registry.model import ModelSpec

THETA = 10000.0
Grid = Sequence[int]
"""Patches in time, height and width."""


class VisionEncoder(nn.Module):
    """``visual`` of the checkpoint."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["embed_dim"], config["num_heads"]
        inner = int(hidden * config["mlp_ratio"])
        self.patch_embed = PatchProjection(f"{name}.patch_embed.proj", hidden, spec)
        self.angles = SquareAngles(hidden // heads, spec)
        self.blocks = nn.ModuleList(
            VisionBlock(f"{name}.blocks.{i}", spec) for i in range(config["depth"])
        )
        norm = LayerNorm(f"{name}.merger.ln_q", hidden, 1e-6, spec=spec)
        self.merger = Merger(f"{name}.merger", norm, hidden, config["hidden_size"], spec)
        self.widest = 4 * inner
        """Entries for each patch: queries, keys, values and what is inside a feed-forward layer."""

    def forward(self, pixels_PCSHW: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Merged squares [M, D] of all items, one behind the other."""
        x_PD = self.patch_embed(pixels_PCSHW)
        angles = self.angles(grids)
        frames = frames_of(grids)
        for block in self.blocks:
            x_PD = block(x_PD, angles, frames)
        merged_MD: Tensor = self.merger(x_PD)
        return merged_MD


def frames_of(grids: Sequence[Grid]) -> list[int]:
    """How many patches each frame has."""
    return [height * width for time, height, width in grids for _ in range(time)]


class PatchProjection(nn.Module):
    """A product for each patch, of its frames' pixels."""

    def __init__(self, name: str, hidden: int, spec: ModelSpec, *, bias: bool = False) -> None:
        super().__init__()
        config = spec.config
        patch = config["patch_size"]
        shape = (hidden, config.get("in_channels", 3), config["temporal_patch_size"], patch, patch)
        self.weight = Parameter(f"{name}.weight", shape, spec)
        self.bias = Parameter(f"{name}.bias", (hidden,), spec) if bias else None

    def forward(self, pixels_PCSHW: Tensor) -> Tensor:
        """Patches [P, D]."""
        bias_D = None if self.bias is None else self.bias.weight
        return F.linear(pixels_PCSHW.flatten(1), self.weight.weight.flatten(1), bias_D)


class SquareAngles(nn.Module):
    """Half of the frequencies turn by a patch's row, half by its column."""

    def __init__(self, head_dim: int, spec: ModelSpec) -> None:
        super().__init__()
        self._merge = spec.config["spatial_merge_size"]
        quarter = head_dim // 4
        self._frequencies_F: Tensor
        frequencies_F = THETA ** -(torch.arange(quarter, dtype=torch.float32) / quarter)
        self.register_buffer("_frequencies_F", frequencies_F.to(spec.device), persistent=False)

    def forward(self, grids: Sequence[Grid]) -> Angles:
        """Cosines and sines [P, F] of items whose merged squares stand together, in float32."""
        angles_PF = torch.cat([self._of(grid) for grid in grids])
        return angles_PF.cos(), angles_PF.sin()

    def _of(self, grid: Grid) -> Tensor:
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


class PatchAttention(nn.Module):
    """Attention of patches to those of their own run: a frame, or a window of one."""

    def __init__(self, name: str, hidden: int, heads: int, spec: ModelSpec) -> None:
        super().__init__()
        self.qkv = QKVLinear(
            f"{name}.qkv",
            hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            bias=True,
            spec=spec,
            stored_fused=True,
        )
        self.proj = ReplicatedLinear(f"{name}.proj", hidden, hidden, bias=True, spec=spec)

    def add_to(
        self, residual_PD: Tensor, x_PD: Tensor, angles: Angles, runs: Sequence[int]
    ) -> Tensor:
        """Add what x says to the residual stream in place, and return it; ``runs`` are lengths."""
        qkv_PHE = self.qkv(x_PD).unflatten(-1, (-1, self.qkv.head_dim))
        rotary_(qkv_PHE[:, : 2 * self.qkv.heads], *angles)
        q_PHE, k_PHE, v_PHE = qkv_PHE.chunk(3, dim=1)
        return self.proj.add_to(residual_PD, attend_runs(q_PHE, k_PHE, v_PHE, runs))


class VisionBlock(nn.Module):
    """Attention within frames, and a feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden = config["embed_dim"]
        inner = int(hidden * config["mlp_ratio"])
        self._activation = activation_of(config, "quick_gelu")
        self.norm1 = LayerNorm(f"{name}.norm1", hidden, 1e-6, spec=spec)
        self.attn = PatchAttention(f"{name}.attn", hidden, config["num_heads"], spec)
        self.norm2 = LayerNorm(f"{name}.norm2", hidden, 1e-6, spec=spec)
        self.fc1 = ReplicatedLinear(f"{name}.mlp.fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.mlp.fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_PD: Tensor, angles: Angles, frames: Sequence[int]) -> Tensor:
        """The hidden state after this block, in place."""
        self.attn.add_to(x_PD, self.norm1(x_PD), angles, frames)
        inner = self.fc1.activated(self.norm2(x_PD), self._activation)
        return self.fc2.add_to(x_PD, inner)


class Merger(nn.Module):
    """Squares of neighbouring patches become tokens of the language model."""

    def __init__(
        self, name: str, norm: LayerNorm | RMSNorm, patch_size: int, out_size: int, spec: ModelSpec
    ) -> None:
        super().__init__()
        self._size = size = patch_size * spec.config["spatial_merge_size"] ** 2
        self.ln_q = norm
        self.first = ReplicatedLinear(f"{name}.mlp.0", size, size, bias=True, spec=spec)
        self.last = ReplicatedLinear(f"{name}.mlp.2", size, out_size, bias=True, spec=spec)

    def forward(self, x_PD: Tensor) -> Tensor:
        """Tokens [M, D]."""
        squares = self.ln_q(x_PD).view(-1, self._size)
        tokens_MD: Tensor = self.last(self.first.activated(squares, "gelu"))
        return tokens_MD
