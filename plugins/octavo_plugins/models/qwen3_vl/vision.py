"""The encoder of Qwen3-VL: learnt positions stretched to each picture, and blocks heard on the way.

Axis suffixes: P patches of all items, M merged squares, D hidden, H rows of a picture, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.norm import LayerNorm
from octavo.layers.rotary import Angles
from octavo.layers.vision import Parameter, activation_of
from octavo_plugins.models.qwen2_vl.vision import (
    Grid,
    PatchAttention,
    PatchProjection,
    SquareAngles,
    frames_of,
)
from octavo_registry.model import ModelSpec

EPS = 1e-6


class DeepEncoder(nn.Module):
    """``visual`` of the checkpoint; a row is what the last block says, then what others do."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, deep = config["hidden_size"], config["deepstack_visual_indexes"]
        self.patch_embed = PatchProjection(f"{name}.patch_embed.proj", hidden, spec, bias=True)
        self.positions = StretchedPositions(f"{name}.pos_embed.weight", spec)
        self.angles = SquareAngles(hidden // config["num_heads"], spec)
        self.blocks = nn.ModuleList(
            DeepBlock(f"{name}.blocks.{i}", spec) for i in range(config["depth"])
        )
        self.merger = DeepMerger(f"{name}.merger", spec, norm_squares=False)
        self.deep_mergers = nn.ModuleDict(
            {
                str(index): DeepMerger(
                    f"{name}.deepstack_merger_list.{number}", spec, norm_squares=True
                )
                for number, index in enumerate(deep)
            }
        )
        self.widest = 4 * max(hidden, config["intermediate_size"])

    def forward(self, pixels_PCSHW: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Rows [M, D + D for each block that is heard] of all items, one behind the other."""
        x_PD = self.patch_embed(pixels_PCSHW)
        x_PD = x_PD + self.positions(grids)
        angles = self.angles(grids)
        frames = frames_of(grids)
        deep = []
        for index, block in enumerate(self.blocks):
            x_PD = block(x_PD, angles, frames)
            if str(index) in self.deep_mergers:
                deep.append(self.deep_mergers[str(index)](x_PD))
        return torch.cat([self.merger(x_PD), *deep], dim=-1)


class StretchedPositions(nn.Module):
    """A square of learnt positions, between which those of a picture's patches are interpolated."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        count = spec.config["num_position_embeddings"]
        self._side = round(count**0.5)
        self._merge = spec.config["spatial_merge_size"]
        self.table = Parameter(name, (count, spec.config["hidden_size"]), spec)

    def forward(self, grids: Sequence[Grid]) -> Tensor:
        """Positions [P, D] of items whose merged squares stand together."""
        return torch.cat([self._of(grid) for grid in grids])

    def _of(self, grid: Grid) -> Tensor:
        time, height, width = grid
        table = self.table.weight
        square_HWD = table.view(self._side, self._side, -1).float()
        square_HWD = self._stretched(square_HWD, height)
        square_HWD = self._stretched(square_HWD.transpose(0, 1), width).transpose(0, 1)
        merge = self._merge
        squares = square_HWD.reshape(height // merge, merge, width // merge, merge, -1)
        frame_PD: Tensor = squares.transpose(1, 2).flatten(0, 3).to(table.dtype)
        return frame_PD.repeat(time, 1)

    def _stretched(self, x_H: Tensor, count: int) -> Tensor:
        """As many along the first axis, of which the outermost are its ends."""
        last = self._side - 1
        place_H = torch.arange(count, device=x_H.device) * last / max(count - 1, 1)
        low_H = place_H.floor().long()
        part_H11 = (place_H - low_H).view(-1, 1, 1)
        high_H = (low_H + 1).clamp(max=last)
        between: Tensor = x_H[low_H] * (1 - part_H11) + x_H[high_H] * part_H11
        return between


class DeepBlock(nn.Module):
    """Attention within frames, and a feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self._activation = activation_of(config, "gelu_pytorch_tanh")
        self.norm1 = LayerNorm(f"{name}.norm1", hidden, EPS, spec=spec)
        self.attn = PatchAttention(f"{name}.attn", hidden, config["num_heads"], spec)
        self.norm2 = LayerNorm(f"{name}.norm2", hidden, EPS, spec=spec)
        self.fc1 = ReplicatedLinear(f"{name}.mlp.linear_fc1", hidden, inner, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(f"{name}.mlp.linear_fc2", inner, hidden, bias=True, spec=spec)

    def forward(self, x_PD: Tensor, angles: Angles, frames: Sequence[int]) -> Tensor:
        """The hidden state after this block, in place."""
        self.attn.add_to(x_PD, self.norm1(x_PD), angles, frames)
        inner = self.fc1.activated(self.norm2(x_PD), self._activation)
        return self.fc2.add_to(x_PD, inner)


class DeepMerger(nn.Module):
    """Squares of neighbouring patches as rows, normalised before or after they are joined."""

    def __init__(self, name: str, spec: ModelSpec, *, norm_squares: bool) -> None:
        super().__init__()
        config = spec.config
        hidden = config["hidden_size"]
        self._size = size = hidden * config["spatial_merge_size"] ** 2
        self._norm_squares = norm_squares
        self.norm = LayerNorm(f"{name}.norm", size if norm_squares else hidden, EPS, spec=spec)
        self.fc1 = ReplicatedLinear(f"{name}.linear_fc1", size, size, bias=True, spec=spec)
        self.fc2 = ReplicatedLinear(
            f"{name}.linear_fc2", size, config["out_hidden_size"], bias=True, spec=spec
        )

    def forward(self, x_PD: Tensor) -> Tensor:
        """Rows [M, D]."""
        if self._norm_squares:
            squares = self.norm(x_PD.view(-1, self._size))
        else:
            squares = self.norm(x_PD).view(-1, self._size)
        rows_MD: Tensor = self.fc2(self.fc1.activated(squares, "gelu"))
        return rows_MD
