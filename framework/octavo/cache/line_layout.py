"""Where the tensors of recurrent states lie in a line."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from octavo_registry.cache import CacheSpec, StateTensor

ALIGNMENT: Final = 256
"""Each tensor begins at a multiple; the first such stretch of a line is for its own numbers."""


class Placed(NamedTuple):
    """A tensor, and the byte of the line where it begins."""

    offset: int
    tensor: StateTensor


class LineLayer(NamedTuple):
    """A layer's part of a line."""

    tensors: tuple[Placed, ...]
    log: tuple[Placed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineLayout:
    """All layers with a recurrent state have a part of each line."""

    specs: tuple[tuple[str, CacheSpec], ...]
    """Layers with such a state by name, in their order."""
    num_logged: int
    """Tokens that a log holds: the most of a row that may turn out not to count, and one."""

    @property
    def layers(self) -> dict[str, LineLayer]:
        """The part of each layer, by its name."""
        return self._cut()[0]

    @property
    def line_bytes(self) -> int:
        """Bytes of one line."""
        return self._cut()[1]

    def held_by(self, layers: Container[str]) -> LineLayout | None:
        """The part of a rank that holds these layers; None: it holds none with a state."""
        specs = tuple((name, spec) for name, spec in self.specs if name in layers)
        return replace(self, specs=specs) if specs else None

    def _cut(self) -> tuple[dict[str, LineLayer], int]:
        end, layers = ALIGNMENT, {}
        for name, spec in self.specs:
            placed: list[Placed] = []
            for count, tensors in ((1, spec.tensors), (self.num_logged, spec.log)):
                for tensor in tensors:
                    placed.append(Placed(end, tensor))
                    end += -(-count * tensor.num_bytes // ALIGNMENT) * ALIGNMENT
            number = len(spec.tensors)
            layers[name] = LineLayer(tuple(placed[:number]), tuple(placed[number:]))
        return layers, end
