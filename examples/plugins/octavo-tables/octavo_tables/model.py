"""A Llama in which a table's rows stand like tokens.

Axis suffixes: C cells of all tables, F features of a number, D hidden, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.attention import SelfAttention, head_dim_of
from octavo.layers.decoder import CausalLM, PreNormLayer
from octavo.layers.linear import ReplicatedLinear
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import RotaryEmbedding
from octavo.layers.vision import Parameter
from octavo_registry import ModelSpec
from octavo_tables.decoder import MAX_COLUMNS

NUM_FREQUENCIES = 8


class TableLlama(CausalLM):
    """TableLlamaForCausalLM: a language model, and ``encode`` for what is no text."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, layer, RotaryEmbedding(head_dim_of(spec.config), spec=spec))
        self.encoder = TableEncoder(spec)
        self.media_row_size: int = spec.config["hidden_size"]
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """The rows of all tables of a step, whatever their shapes."""
        return self.encoder([item["cells"] for item in items])

    def encode_bytes(self, num_rows: int) -> int:
        """A hidden state for each cell, before and behind its activation, and their sum."""
        return 3 * num_rows * MAX_COLUMNS * self.media_row_size * self._dtype.itemsize


def layer(spec: ModelSpec, index: int) -> nn.Module:
    """Llama's."""
    config, name = spec.config, f"model.layers.{index}"
    mlp = GatedMLP(
        f"{name}.mlp",
        config["hidden_size"],
        config["intermediate_size"],
        activation="silu",
        bias=False,
        spec=spec,
    )
    return PreNormLayer(name, spec, SelfAttention(f"{name}.self_attn", spec), mlp)


class TableEncoder(nn.Module):
    """Each cell by its number and its column; a row is the sum of its cells."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden = spec.config["hidden_size"]
        self.number = ReplicatedLinear(
            "tables.number", 2 * NUM_FREQUENCIES, hidden, bias=True, spec=spec
        )
        self.columns = Parameter("tables.columns.weight", (MAX_COLUMNS, hidden), spec)
        self.row = ReplicatedLinear("tables.row", hidden, hidden, bias=True, spec=spec)

    def forward(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """Hidden states [R, D] of each table [rows, columns]."""
        columns_C = torch.cat(
            [torch.arange(each.shape[1], device=each.device).repeat(len(each)) for each in tables]
        )
        features_CF = features(torch.cat([each.flatten() for each in tables]))
        columns_CD = self.columns.weight[columns_C]
        cells_CD = F.gelu(self.number(features_CF.to(columns_CD.dtype)) + columns_CD)
        pieces = cells_CD.split([each.numel() for each in tables])
        rows_RD = torch.cat(
            [
                piece.unflatten(0, each.shape).sum(1)
                for piece, each in zip(pieces, tables, strict=True)
            ]
        )
        return list(self.row(rows_RD).split([len(each) for each in tables]))


def features(numbers_C: Tensor) -> Tensor:
    """Waves of a number's size, so that near ones are alike at any scale [C, F]."""
    sizes_C1 = (numbers_C.sign() * numbers_C.abs().log1p()).unsqueeze(1)
    frequencies_F = 2.0 ** torch.arange(NUM_FREQUENCIES, device=numbers_C.device)
    angles_CF = sizes_C1 * frequencies_F * (math.pi / 16)
    return torch.cat([angles_CF.sin(), angles_CF.cos()], dim=1)
