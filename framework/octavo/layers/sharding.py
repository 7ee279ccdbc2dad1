"""Which part of a model this process holds: a slice of each layer, and a range of layers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.errors import ModelError
from octavo_registry.model import Collectives, ModelSpec

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``size`` of ``total`` entries, from ``first`` on."""

    total: int
    first: int
    size: int

    @classmethod
    def whole(cls, total: int) -> Shard:
        """All of them: every rank holds the same."""
        return cls(total=total, first=0, size=total)

    @classmethod
    def of_rank(cls, total: int, spec: ModelSpec, what: str) -> Shard:
        """This rank's equal part; ``what`` names the entries for the error."""
        if total % spec.tp_size:
            raise ModelError(
                f"{what}: {total} cannot be split among tensor_parallel_size={spec.tp_size}; "
                f"choose a divisor of {total}"
            )
        size = total // spec.tp_size
        return cls(total=total, first=spec.tp_rank * size, size=size)

    @classmethod
    def of_kv_heads(cls, kv_heads: int, spec: ModelSpec, what: str) -> Shard:
        """This rank's key/value heads; one is held by several ranks where there are too few."""
        if spec.tp_size <= kv_heads:
            return cls.of_rank(kv_heads, spec, what)
        if spec.tp_size % kv_heads:
            raise ModelError(
                f"{what}: {kv_heads} cannot be shared by tensor_parallel_size={spec.tp_size}; "
                f"choose a divisor or a multiple of {kv_heads}"
            )
        return cls(total=kv_heads, first=spec.tp_rank * kv_heads // spec.tp_size, size=1)

    def scaled(self, factor: int) -> Shard:
        """The same part, counted in units that are ``factor`` times smaller."""
        return Shard(total=self.total * factor, first=self.first * factor, size=self.size * factor)


def collectives_of(spec: ModelSpec) -> Collectives | None:
    """What joins the ranks' results, None for a single rank."""
    if spec.tp_size == 1:
        return None
    if spec.collectives is None:
        raise ModelError(
            f"{spec.architecture} is to run as rank {spec.tp_rank} of {spec.tp_size}, but "
            "ModelSpec.collectives is None; the executor must give them"
        )
    return spec.collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers that live in this process: those of one pipeline stage."""

    layers: range
    num_layers: int

    @classmethod
    def of(cls, spec: ModelSpec, num_layers: int) -> Stage:
        """The stage that the spec asks for."""
        last = num_layers if spec.last_layer is None else spec.last_layer
        if not 0 <= spec.first_layer < last <= num_layers:
            raise ModelError(
                f"{spec.architecture} has layers 0 to {num_layers}; a stage of layers "
                f"{spec.first_layer} to {last} is not part of it"
            )
        return cls(layers=range(spec.first_layer, last), num_layers=num_layers)

    @property
    def is_first(self) -> bool:
        """Whether the embedding lives here."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the final norm and the logits live here."""
        return self.layers.stop == self.num_layers

    def is_elsewhere(self, name: str) -> bool:
        """Whether another stage may hold the checkpoint tensor of this name."""
        found = _LAYER.search(name)
        if found is None:
            return not (self.is_first and self.is_last)
        return int(found[1]) < self.num_layers and int(found[1]) not in self.layers
