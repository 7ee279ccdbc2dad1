"""What a quantization is tried with, and how results are compared.

Axis suffixes: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from octavo_registry import ModelSpec, Quantization

LARGEST_ERROR: Final = 0.02
"""What results may differ by, as a part of their size: products may be of 8 bits."""
EQUAL_ERROR: Final = 1e-5
"""What weights may, which are what a format says, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSamples:
    """What a quantization's ``samples`` function returns."""

    store: Callable[[Tensor], tuple[Mapping[str, Tensor], Tensor]]
    """From a weight [O, I] in float32 to what a checkpoint has of it, by the last part of the name
    ("weight_packed"), and the weight that this stands for."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's ``quantization_config``."""
    stacked: bool = False
    """Experts come as stacks ("experts.gate_up_proj_blocks"), gates and ups by turns."""
    in_features: int = 256
    out_features: int = 128
    dtype: str = "float32"


def spec_of(
    quantization: Quantization | None, samples: QuantizationSamples, rank: int, num_ranks: int
) -> ModelSpec:
    """What layers of one rank are built from."""
    return ModelSpec(
        architecture="Kit",
        config={},
        dtype=getattr(torch, samples.dtype),
        device=torch.device("cpu"),
        max_model_len=128,
        tp_rank=rank,
        tp_size=num_ranks,
        collectives=None if num_ranks == 1 else _OneRank(),
        quantization=quantization,
    )


class _OneRank:
    """Leaves each rank what it has, so that the kit may add it up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Its own part."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Its own part."""
        return x


def difference(
    what: str,
    found: Any,
    expected_TO: Tensor,
    num_outputs: int | None = None,
    *,
    most: float = LARGEST_ERROR,
) -> Iterator[str]:
    """Say what is wrong with a tensor, if anything is."""
    shape = [len(expected_TO), num_outputs or expected_TO.shape[1]]
    if not isinstance(found, Tensor) or list(found.shape) != shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        yield f"{what} is {got}, not a tensor of {shape}"
        return
    error = float((found.double() - expected_TO).norm() / expected_TO.norm().clamp_min(1e-9))
    if not error <= most:
        yield f"{what} differs by {error:.2g} of its size, and may by {most}"
