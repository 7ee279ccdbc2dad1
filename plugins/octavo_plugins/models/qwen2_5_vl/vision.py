"""The encoder of Qwen2.5-VL: most of its blocks attend within windows of a frame.

Axis suffixes: P patches of all items, M merged squares, U patches of a square, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles
from octavo_plugins.models.qwen2_vl.vision import (
    Grid,
    Merger,
    PatchAttention,
    PatchProjection,
    SquareAngles,
    frames_of,
)
from octavo_registry.model import ModelSpec

EPS = 1e-6


class WindowedEncoder(nn.Module):
    """``visual`` of the checkpoint."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden = config["hidden_size"]
        self.patch_embed = PatchProjection(f"{name}.patch_embed.proj", hidden, spec)
        self.angles = SquareAngles(hidden // config["num_heads"], spec)
        self.blocks = nn.ModuleList(
            WindowedBlock(f"{name}.blocks.{i}", spec) for i in range(config["depth"])
        )
        norm = RMSNorm(f"{name}.merger.ln_q", hidden, EPS, spec=spec)
        self.merger = Merger(f"{name}.merger", norm, hidden, config["out_hidden_size"], spec)
        self.widest = 4 * max(hidden, config["intermediate_size"])
        self._device = spec.device
        self._merge = config["spatial_merge_size"]
        self._window = config["window_size"] // config["patch_size"] // self._merge
        self._without_windows = frozenset(config["fullatt_block_indexes"])

    def forward(self, pixels_PCSHW: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Merged squares [M, D] of all items, one behind the other."""
        order_M, windows = self._by_windows(grids)
        x_PD = self._sorted(self.patch_embed(pixels_PCSHW), order_M)
        cos_PF, sin_PF = self.angles(grids)
        angles = self._sorted(cos_PF, order_M), self._sorted(sin_PF, order_M)
        frames = frames_of(grids)
        for index, block in enumerate(self.blocks):
            x_PD = block(x_PD, angles, frames if index in self._without_windows else windows)
        merged_MD: Tensor = self.merger(x_PD)
        return merged_MD.index_select(0, order_M.argsort())

    def _sorted(self, x_P: Tensor, order_M: Tensor) -> Tensor:
        """Patches of all axes behind the first, square by square in that order."""
        squares_M: Tensor = x_P.unflatten(0, (-1, self._merge**2)).index_select(0, order_M)
        return squares_M.flatten(0, 1)

    def _by_windows(self, grids: Sequence[Grid]) -> tuple[Tensor, list[int]]:
        """Squares so that those of a window stand together, and how many patches each has."""
        orders, sizes, first, side = [], [], 0, self._window
        for time, height, width in grids:
            rows, columns = height // self._merge, width // self._merge
            row_M, column_M = (torch.arange(count) // side for count in (rows, columns))
            window_M = (row_M.unsqueeze(1) * -(-columns // side) + column_M).flatten()
            frame_M = window_M.argsort(stable=True)
            frame_sizes = (window_M.bincount() * self._merge**2).tolist()
            for _ in range(time):
                orders.append(frame_M + first)
                sizes += frame_sizes
                first += rows * columns
        return torch.cat(orders).to(self._device), sizes


class WindowedBlock(nn.Module):
    """Attention within frames or windows, and a gated feed-forward layer."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden = config["hidden_size"]
        self.norm1 = RMSNorm(f"{name}.norm1", hidden, EPS, spec=spec)
        self.attn = PatchAttention(f"{name}.attn", hidden, config["num_heads"], spec)
        self.norm2 = RMSNorm(f"{name}.norm2", hidden, EPS, spec=spec)
        self.mlp = GatedMLP(
            f"{name}.mlp",
            hidden,
            config["intermediate_size"],
            activation=config.get("hidden_act", "silu"),
            bias=True,
            spec=spec,
        )

    def forward(self, x_PD: Tensor, angles: Angles, runs: Sequence[int]) -> Tensor:
        """The hidden state after this block, in place."""
        self.attn.add_to(x_PD, self.norm1(x_PD), angles, runs)
        return self.mlp.add_to(x_PD, self.norm2(x_PD))
