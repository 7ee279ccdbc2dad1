"""Which part of a model this process holds: a slice of each layer, and a range of layers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.errors import ModelError
from octavo_registry.model import Collectives, ModelSpec
from octavo_registry.sites import Shard

MAX_SIZES_SHOWN = 12
_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


def rank_shard(total: int, spec: ModelSpec, what: str, *, unit: int = 1) -> Shard:
    """This rank's equal part; ``what`` names the features for the error.

    With a ``unit`` it is a multiple of that, and the last ranks' parts may be padding.
    """
    if unit > 1:
        size = -(-total // (unit * spec.tp_size)) * unit
        return Shard(total=total, first=spec.tp_rank * size, size=size)
    if total % spec.tp_size:
        raise ModelError(
            f"{what}: {total} cannot be split among tensor_parallel_size={spec.tp_size}; "
            f"choose a divisor of {total}"
        )
    size = total // spec.tp_size
    return Shard(total=total, first=spec.tp_rank * size, size=size)


def kv_heads_shard(kv_heads: int, spec: ModelSpec, what: str) -> Shard:
    """This rank's key/value heads; one is held by several ranks where there are too few."""
    if spec.tp_size <= kv_heads:
        return rank_shard(kv_heads, spec, what)
    if spec.tp_size % kv_heads:
        raise ModelError(
            f"{what}: {kv_heads} cannot be shared by tensor_parallel_size={spec.tp_size}; "
            f"choose a divisor or a multiple of {kv_heads}"
        )
    return Shard(total=kv_heads, first=spec.tp_rank * kv_heads // spec.tp_size, size=1)


def entries_of(shard: Shard, unit: int, what: str) -> Shard:
    """A part, counted in entries that hold ``unit`` features each, the last one of all maybe fewer.

    A ModelError where it would cut through an entry; ``what`` names the features for that.
    """
    last = shard.first + shard.size
    if shard.first % unit or (last % unit and last < shard.total):
        sizes = [n for n in range(1, shard.total // unit + 1) if not shard.total % (unit * n)]
        raise ModelError(
            f"{what}: they are stored in groups of {unit}, which a rank's {shard.size} of "
            f"{shard.total} would cut through; choose a tensor_parallel_size of "
            f"{', '.join(map(str, sizes[:MAX_SIZES_SHOWN])) or 1}"
        )
    return Shard(
        total=-(-shard.total // unit), first=shard.first // unit, size=-(-shard.size // unit)
    )


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
