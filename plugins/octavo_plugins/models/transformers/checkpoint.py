"""Streams a checkpoint into a Transformers model by the conversions that Transformers declares.

What a conversion makes of several tensors, such as one parameter of all experts, is made as soon as
all have come, so that no more waits than the parts of what is under way.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from octavo.errors import ModelError


def fill(model: Any, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Fill parameters and buffers; return the names of those that are complete."""
    return _Filling(model).fill(tensors)


class _Filling:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._targets: dict[str, Tensor] = model.state_dict(keep_vars=True)
        conversions = get_model_conversion_mapping(model)
        self._renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
        self._converters = [c for c in conversions if isinstance(c, WeightConverter)]
        self._waiting: dict[str, dict[str, Tensor]] = defaultdict(dict)
        """Tensors by the target of their conversion."""
        self._filled: set[str] = set()
        self._written: set[int] = set()
        """Tensors, by identity: tied ones have several names."""

    def fill(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        for name, tensor in tensors:
            target, pattern = self._place_of(name)
            if target in self._targets and pattern is None:
                self._copy(target, tensor, source=name)
            elif target in self._targets:
                self._collect(target, name, tensor)
            elif not self._is_not_needed(name, target):
                raise ModelError(
                    f"tensor {name!r} of shape {list(tensor.shape)} fits no part of "
                    f"{type(self._model).__name__}; is config.json that of these weights?"
                )
        if self._waiting:
            target, parts = next(iter(self._waiting.items()))
            raise ModelError(
                f"{target} is made of tensors that are not all there; {len(parts)} are, such as "
                f"{min(parts)}; the download is not complete"
            )
        self._check_buffers()
        return self._filled

    def _place_of(self, name: str) -> tuple[str, str | None]:
        """Where a tensor belongs, and the pattern of the conversion that takes it there."""
        prefix = self._model.base_model_prefix
        target, pattern = rename_source_key(
            name, self._renamings, self._converters, prefix, self._targets
        )
        if target not in self._targets:
            unchanged, _ = rename_source_key(name, [], [], prefix, self._targets)
            if unchanged in self._targets:
                return unchanged, None
        return target, pattern

    def _collect(self, target: str, name: str, tensor: Tensor) -> None:
        """Keep a copy, since the stream uses its memory again; convert once all have come."""
        parts = self._waiting[target]
        parts[name] = tensor.clone()
        converted = self._converted(target, parts)
        if converted is not None:
            del self._waiting[target]
            for made_name, made in converted.items():
                self._copy(made_name, made, source=name)

    def _converted(self, target: str, parts: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """None while elements are missing; a conversion moves elements, it makes none."""
        converter = self._converter_of(next(iter(parts)))
        num_elements = sum(part.numel() for part in parts.values())
        if num_elements < self._num_elements_of(target, converter):
            return None
        for name in sorted(parts, key=dot_natural_key):  # experts by number, in whichever order
            _, pattern = self._place_of(name)
            converter.add_tensor(target, name, pattern, parts[name])
        made = converter.convert(target, model=self._model, config=self._model.config)
        return {
            name: value[0] if isinstance(value, list) else value for name, value in made.items()
        }

    def _converter_of(self, name: str) -> Any:
        """A fresh converter: each collects the tensors of one target."""
        _, pattern = self._place_of(name)
        return copy.deepcopy(next(c for c in self._converters if pattern in c.source_patterns))

    def _num_elements_of(self, target: str, converter: Any) -> int:
        """Elements of the target, and of its siblings where a conversion splits."""
        first, *others = converter.target_patterns
        names = [target, *(target.replace(first, other) for other in others)]
        return sum(self._targets[name].numel() for name in names if name in self._targets)

    def _copy(self, name: str, tensor: Tensor, *, source: str) -> None:
        target = self._targets.get(name)
        if target is None or target.shape != tensor.shape:
            expected = "nothing" if target is None else f"shape {list(target.shape)}"
            raise ModelError(
                f"tensor {source!r}: {name} takes {expected}, found {list(tensor.shape)}; "
                "is config.json that of these weights?"
            )
        if id(target) in self._written and not torch.equal(target, tensor.to(target)):
            raise ModelError(
                f"tensor {source!r} differs from what config.json ties it to; "
                "if they are two, pass hf_overrides={'tie_word_embeddings': False}"
            )
        target.data.copy_(tensor)
        self._written.add(id(target))
        self._filled.add(name)

    def _is_not_needed(self, name: str, target: str) -> bool:
        """What Transformers leaves out as well: buffers that it computes, unused extras."""
        patterns = self._model._keys_to_ignore_on_load_unexpected or ()
        ignored = any(re.search(pattern, key) for pattern in patterns for key in (name, target))
        return ignored or name.endswith(".rotary_emb.inv_freq")

    def _check_buffers(self) -> None:
        """Parameters that stay empty are found by the framework; buffers by nobody else."""
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        missing = sorted(self._targets.keys() - parameters - self._filled)
        if missing:
            raise ModelError(
                f"the weights of {type(self._model).__name__} lack {', '.join(missing)}"
            )
