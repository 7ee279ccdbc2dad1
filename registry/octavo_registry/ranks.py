"""Which part of a model a worker holds, among the workers of one engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo_registry.model import Collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """A worker's place: its slice of each layer, and its pipeline stage's range of layers."""

    tp_rank: int = 0
    tp_size: int = 1
    """Ranks that each hold a slice of the same layers."""
    stage: int = 0
    num_stages: int = 1
    first_layer: int = 0
    last_layer: int | None = None
    """Layers first_layer <= i < last_layer are the stage's; None means to the end."""
    collectives: Collectives | None = None
    """Joins the ranks of the stage; None only with a tp_size of 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"tp_rank={self.tp_rank} is not below tp_size={self.tp_size}")
        if not 0 <= self.stage < self.num_stages:
            raise ValueError(f"stage={self.stage} is not below num_stages={self.num_stages}")

    def __str__(self) -> str:
        return f"rank {self.tp_rank} of stage {self.stage}"


ONE_RANK: Final = Ranks()
"""A worker that holds all."""
