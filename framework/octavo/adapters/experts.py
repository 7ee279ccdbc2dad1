"""Adapters that change experts one by one, as matrices of the tensor that has all of a layer.

Axis suffixes: X experts, R rank rows, I inputs, O outputs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from octavo.errors import AdapterError
from octavo.wording import listed
from octavo_registry.adapters import Adapter

ONE: Final = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d{1,6})\.(?P<child>\w+)")
HALVES: Final = {"gate_up_proj": 2, "down_proj": 1}
PLACES: Final = {
    "gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0), "w3": ("gate_up_proj", 1), "w2": ("down_proj", 0),
}  # fmt: skip
"""The tensor that an expert's linear is in, and which of its halves, by its name's last part."""


@dataclass(frozen=True, slots=True)
class _One:
    name: str
    expert: int
    half: int


def stacked(adapter: Adapter, num_experts: int) -> Adapter:
    """Return the adapter with what it changes of single experts put together by layers.

    Gates and ups keep rank rows of their own, one behind the other. What an adapter leaves as it is
    has zeros; scalings are in ``up``.
    """
    tensors: dict[str, list[_One]] = defaultdict(list)
    for name in adapter.down:
        match = ONE.fullmatch(name)
        place = PLACES.get(match["child"]) if match else None
        if match and place and int(match["number"]) < num_experts:
            one = _One(name, int(match["number"]), place[1])
            tensors[f"{match['experts']}.{place[0]}"].append(one)
    if not tensors:
        return adapter
    if both := sorted(tensors.keys() & adapter.down.keys()):
        raise AdapterError(f"the adapter changes {listed(both)} and single experts of it, too")
    down, up, scaling = dict(adapter.down), dict(adapter.up), dict(adapter.scaling)
    for tensor, ones in tensors.items():
        halves = HALVES[tensor.rpartition(".")[2]]
        down[tensor], up[tensor] = _joined(adapter, ones, num_experts, halves)
        scaling[tensor] = 1.0
        for one in ones:
            del down[one.name], up[one.name], scaling[one.name]
    rank = max(len(matrix) for matrix in down.values())
    return replace(adapter, rank=rank, down=down, up=up, scaling=scaling)


def _joined(
    adapter: Adapter, ones: Sequence[_One], num_experts: int, halves: int
) -> tuple[Tensor, Tensor]:
    _check_alike(adapter, ones)
    first = ones[0].name
    inputs, outputs = adapter.down[first].shape[1], adapter.up[first].shape[0]
    ranks = [
        max((len(adapter.down[one.name]) for one in ones if one.half == half), default=0)
        for half in range(halves)
    ]
    down_RXI = torch.zeros(sum(ranks), num_experts, inputs)
    up_XOR = torch.zeros(num_experts, halves * outputs, sum(ranks))
    for one in ones:
        start = sum(ranks[: one.half])
        rows = slice(start, start + len(adapter.down[one.name]))
        part = slice(one.half * outputs, (one.half + 1) * outputs)
        down_RXI[rows, one.expert] = adapter.down[one.name].float()
        up_XOR[one.expert, part, rows] = adapter.up[one.name].float() * adapter.scaling[one.name]
    return down_RXI.flatten(1), up_XOR.flatten(0, 1)


def _check_alike(adapter: Adapter, ones: Sequence[_One]) -> None:
    """All of a layer have the same inputs and outputs."""
    sizes: dict[tuple[int, ...], str] = {}
    for one in ones:
        down, up = adapter.down[one.name], adapter.up[one.name]
        if down.dim() != 2 or up.dim() != 2 or len(down) != up.shape[1]:
            raise AdapterError(
                f"{one.name} has A {[*down.shape]} and B {[*up.shape]}, not [rank, inputs] and "
                "[outputs, rank]"
            )
        sizes.setdefault((down.shape[1], up.shape[0]), one.name)
    if len(sizes) > 1:
        raise AdapterError(f"experts of one layer differ in shape: {listed([*sizes.values()])}")
