"""Streams checkpoint tensors into parameters: shard by shard, one tensor in memory at a time.

Layers say which checkpoint tensors fill them, by the names of Hugging Face checkpoints: a layer's
own full name, or its siblings' names where it fuses several. So a model's ``load`` is one call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from octavo.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One checkpoint tensor that fills a parameter or a part of it."""

    name: str
    shape: tuple[int, ...]
    """Its shape in the checkpoint."""
    part: tuple[slice | Tensor, ...]
    """What this rank takes of it, by axis: a range, or entries in an order."""
    target: Tensor
    """Where that goes: a view of the parameter."""
    parameter: nn.Parameter | None
    """None: nothing is filled. The tensor may be missing, and must be zero where it is there."""


@runtime_checkable
class LoadsWeights(Protocol):
    """A layer that knows the checkpoint tensors it is made of."""

    def sources(self) -> Iterator[Source]:
        """Every checkpoint tensor that this layer needs."""
        ...


def load_weights(
    model: nn.Module,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    ignore: Callable[[str], bool] = lambda name: False,
) -> set[str]:
    """Fill the model and return the names of the parameters that are complete.

    A parameter made of several tensors is complete when all have come. A tensor that no layer
    wants, and that ``ignore`` does not let pass, is an error.
    """
    wanted: dict[str, list[Source]] = defaultdict(list)
    missing: Counter[int] = Counter()
    for module in model.modules():
        if isinstance(module, LoadsWeights):
            for source in module.sources():
                wanted[source.name].append(source)
                if source.parameter is not None:
                    missing[id(source.parameter)] += 1
    for name, tensor in tensors:
        sources = wanted.get(name)
        if sources is None:
            if ignore(name):
                continue
            raise ModelError(
                f"tensor {name!r} of shape {list(tensor.shape)} fits no layer of "
                f"{type(model).__name__}; is config.json that of these weights?"
            )
        for source in sources:
            _fill(source, tensor)
            if source.parameter is not None:
                missing[id(source.parameter)] -= 1
    return {
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if missing.get(id(parameter)) == 0
    }


def renamed(
    tensors: Iterable[tuple[str, Tensor]], prefixes: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, Tensor]]:
    """Tensors under our names: of the prefixes (theirs, ours) the first that fits is replaced."""
    for name, tensor in tensors:
        for theirs, ours in prefixes:
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
                break
        yield name, tensor


def _fill(source: Source, tensor: Tensor) -> None:
    if source.shape == () and tensor.shape == (1,):
        tensor = tensor[0]  # tools write a number either way
    if tuple(tensor.shape) != source.shape:
        raise ModelError(
            f"tensor {source.name!r}: expected shape {list(source.shape)}, "
            f"found {list(tensor.shape)}; is config.json that of these weights?"
        )
    if source.parameter is None:
        if bool(tensor.any()):
            raise ModelError(
                f"tensor {source.name!r} is not zero, and the model has nothing of that name; is "
                "config.json that of these weights?"
            )
        return
    if tensor.dtype != source.target.dtype and not (
        _may_convert(tensor.dtype) and _may_convert(source.target.dtype)
    ):
        raise ModelError(
            f"tensor {source.name!r}: expected {source.target.dtype}, found {tensor.dtype}; is "
            "config.json that of these weights?"
        )
    device = tensor.device
    part = tuple(its.to(device) if isinstance(its, Tensor) else its for its in source.part)
    source.target.data.copy_(tensor[part])


def _may_convert(dtype: torch.dtype) -> bool:
    """Whether numbers stay what they are in another such dtype, but for rounding."""
    return dtype.is_floating_point and dtype.itemsize > 1
