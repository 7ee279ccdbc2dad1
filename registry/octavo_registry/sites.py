"""Sites: where a model's weights stand, and how much of them this rank has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

SiteKind = Literal["linear", "router", "experts", "latent", "embedding", "head"]
"""A linear; one that chooses experts; a layer of experts; the projection that latent attention
multiplies into queries and results; the two ends of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``size`` features from ``first`` on, of ``total``; what lies behind ``total`` is padding."""

    total: int
    first: int
    size: int

    @classmethod
    def whole(cls, total: int) -> Shard:
        """All of them: every rank holds the same."""
        return cls(total=total, first=0, size=total)

    def scaled(self, factor: int) -> Shard:
        """This part, counted in units that are ``factor`` times smaller."""
        return Shard(total=self.total * factor, first=self.first * factor, size=self.size * factor)


class Axis(NamedTuple):
    """What one axis of a parameter runs along; ``Axis("out", 128)``: blocks of 128 outputs.

    An entry holds ``unit`` features, fewer where a part ends. With "part" the parameter has an
    entry for each of the site's parts, and checkpoints one number or tensor without that axis.
    None: it is whole on every rank, and in every part the same.
    """

    along: Literal["in", "out", "part"] | None = None
    unit: int = 1


class Part(NamedTuple):
    """Outputs that checkpoints have in one place."""

    name: str
    """Name of the tensors there, without their last part."""
    outputs: Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A weight [outputs, inputs] of this rank, of one or several of a checkpoint's linears."""

    name: str
    kind: SiteKind
    inputs: Shard
    parts: tuple[Part, ...]
    """The outputs in order; neighbours in one tensor are one part."""

    @property
    def names(self) -> tuple[str, ...]:
        """What checkpoints call the linears that stand here, and lists of exceptions name."""
        return tuple(dict.fromkeys(part.name for part in self.parts))

    @property
    def in_features(self) -> int:
        """This rank's inputs."""
        return self.inputs.size

    @property
    def out_features(self) -> int:
        """This rank's outputs."""
        return sum(part.outputs.size for part in self.parts)

    def length(self, axis: Axis) -> int:
        """How many entries a parameter has along an axis of features or parts."""
        if axis.along == "part":
            return len(self.parts)
        sizes = [self.inputs.size] if axis.along == "in" else [p.outputs.size for p in self.parts]
        return sum(-(-size // axis.unit) for size in sizes)

    def shape(self, *axes: Axis) -> tuple[int, ...]:
        """The shape of a parameter whose axes all run along features or parts."""
        return tuple(self.length(axis) for axis in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSite:
    """The weights of a layer of experts, of which each is a gate, an up and a down projection.

    ``Quantization.method_of`` sees all intermediate features, ``ExpertsMethod.create`` this rank's.
    """

    name: str
    num_experts: int
    gate_up: Site
    """One expert's first product; its parts are gates and ups."""
    down: Site
    names: tuple[str, ...]
    """See ``Site``: three linears an expert, or two stacks."""

    @property
    def kind(self) -> SiteKind:
        """As of a ``Site``."""
        return "experts"
