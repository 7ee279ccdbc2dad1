"""Whether an adapter fits a model; what does not is an error that lists names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from octavo.adapters.experts import stacked
from octavo.errors import AdapterError
from octavo.messages import LinearSize
from octavo.wording import counted, listed
from octavo_registry.adapters import Adapter

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WRAPPERS = ("base_model", "model", "language_model", "text_model", "transformer")
"""What may stand before a name, or not: it says what a model is wrapped in, and versions of
Transformers differ in it."""
LAYER = re.compile(r"\.(\d+)\.")
"""The first of these in a name is its layer's number."""
EXPERTS = re.compile(r"\.experts(\.|$)")
NOT_YET = re.compile(
    r"(^|\.)(embed_positions|wpe|score|visual|(vision|audio)_\w+|multi_modal_projector)"
    r"(\.|$)"
)
"""Parts of names that PEFT can adapt and an engine cannot: learned positions, towers of media."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_adapter(
    adapter: Adapter,
    linears: Mapping[str, LinearSize],
    *,
    model_names: Collection[str] = (),
    max_rank: int | None = None,
) -> Adapter:
    """Return the adapter under the model's own names; raise an ``AdapterError`` if it does not fit.

    ``model_names`` are all names of the model that the engine runs; without any, what the adapter
    was trained on is not compared.
    """
    if not adapter.down:
        raise AdapterError("the adapter has no tensors: it would change nothing")
    if (num_experts := max((size.experts for size in linears.values()), default=1)) > 1:
        adapter = stacked(adapter, num_experts)
    names = matching_names(adapter.down, linears)
    _check_base(adapter.base_model, model_names)
    adapter = replace(
        adapter,
        scaling={names[name]: value for name, value in adapter.scaling.items()},
        down={names[name]: tensor for name, tensor in adapter.down.items()},
        up={names[name]: tensor for name, tensor in adapter.up.items()},
    )
    _check_targets(adapter, linears)
    _check_shapes(adapter, linears)
    _check_ranks(adapter, max_rank)
    _check_numbers(adapter)
    return adapter


def matching_names(given: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """The model's name for each of an adapter's; one that has none, or another's, is an error."""
    known = list(known)
    stems = Counter(map(_stem, known))
    by_stem = {_stem(name): name for name in known if stems[_stem(name)] == 1}
    exact = set(known)
    names = {name: name if name in exact else by_stem.get(_stem(name), "") for name in given}
    unknown = sorted(name for name, ours in names.items() if not ours)
    if experts := [name for name in unknown if EXPERTS.search(name)]:
        raise AdapterError(
            "adapters of experts need lora_experts, which takes memory for each expert, and must "
            f"name what a layer of the model has: {listed(experts)}"
        )
    if not_yet := [name for name in unknown if NOT_YET.search(name)]:
        raise AdapterError(
            "adapters of learned positions and towers of media are not supported: "
            f"{listed(not_yet)}"
        )
    kinds = {_in_any_layer(stem) for stem in stems}
    if beyond := [
        name for name in unknown if _stem(name) not in stems and _in_any_layer(_stem(name)) in kinds
    ]:
        num_layers = 1 + max(int(found[1]) for stem in stems if (found := LAYER.search(stem)))
        raise AdapterError(
            f"the adapter has modules of layers where the model has none: {listed(beyond)}; "
            f"it has {counted(num_layers, 'layer')}, and 0 is the first"
        )
    if len(unknown) == len(names):
        raise AdapterError(
            f"the adapter touches no linear of the model: it has {listed(unknown)}, and the model "
            f"{listed(sorted(known))}"
        )
    if unknown:
        raise AdapterError(
            f"the model has no linear for {counted(len(unknown), 'module')} of the adapter: "
            f"{listed(unknown)}; it has {listed(_kinds(known))}"
        )
    if twice := sorted(ours for ours, times in Counter(names.values()).items() if times > 1):
        raise AdapterError(f"the adapter has two pairs of matrices for {listed(twice)}")
    return names


def _stem(name: str) -> str:
    parts = name.split(".")
    last = len(parts) - 1
    first = next((i for i in range(last) if parts[i] not in WRAPPERS), last)
    return ".".join(parts[first:]).replace(".block_sparse_moe.", ".mlp.")


def _in_any_layer(stem: str) -> str:
    return LAYER.sub(".N.", stem, count=1)


def _kinds(names: Iterable[str]) -> list[str]:
    """Last parts of names, each once."""
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _check_base(trained_on: str | None, model_names: Collection[str]) -> None:
    """Names of repositories are compared; a folder may be called anything."""
    repositories = {name.lower() for name in model_names if _REPOSITORY.fullmatch(name)}
    if trained_on is None or not _REPOSITORY.fullmatch(trained_on) or not repositories:
        return
    if trained_on.lower() not in repositories:
        raise AdapterError(
            f"the adapter was trained on {trained_on!r}, not on {listed([*model_names])}; if that "
            "is the same, say so with base_model_name"
        )


def _check_targets(adapter: Adapter, linears: Mapping[str, LinearSize]) -> None:
    """Tensors of all experts are no modules, so that lists of modules do not mean them."""
    modules = [name for name, size in linears.items() if size.experts == 1]
    lost = _ends(map(_stem, modules)) - _ends(map(_stem, adapter.down))
    if missing := sorted(target for target in set(adapter.targets) if _stem(target) in lost):
        raise AdapterError(
            f"the adapter's config says that it changes {listed(missing)}, which the model has, "
            "and its file has no tensors of that: it was not saved whole, or target_modules is "
            "another adapter's"
        )


def _ends(names: Iterable[str]) -> set[str]:
    """Whole names, too."""
    return {
        ".".join(parts[first:])
        for parts in (name.split(".") for name in names)
        for first in range(len(parts))
    }


def _check_shapes(adapter: Adapter, linears: Mapping[str, LinearSize]) -> None:
    wrong = []
    for name in adapter.down:
        size, down, up = linears[name], adapter.down[name], adapter.up[name]
        rank = down.shape[0] if down.dim() == 2 else 0
        if down.shape != (rank, size.inputs) or up.shape != (size.outputs, rank):
            wrong.append(
                f"{name} (A {[*down.shape]} and B {[*up.shape]}, not [rank, {size.inputs}] and "
                f"[{size.outputs}, rank])"
            )
    if wrong:
        raise AdapterError(f"the adapter's shapes are another model's: {listed(wrong)}")


def _check_ranks(adapter: Adapter, max_rank: int | None) -> None:
    ranks = {name: down.shape[0] for name, down in adapter.down.items()}
    if empty := [name for name, rank in ranks.items() if rank < 1]:
        raise AdapterError(f"the adapter has a rank of 0 at {listed(empty)}")
    if adapter.rank != max(ranks.values()):
        raise AdapterError(
            f"the adapter says that its rank is {adapter.rank}; its largest is "
            f"{max(ranks.values())}"
        )
    if max_rank is not None and adapter.rank > max_rank:
        beyond = [f"{name} ({rank})" for name, rank in ranks.items() if rank > max_rank]
        raise AdapterError(
            f"the adapter's rank of {adapter.rank} is above {max_rank}, which the engine was "
            f"started with (max_lora_rank, or lora_pool_rank without it): {listed(beyond)}"
        )


def _check_numbers(adapter: Adapter) -> None:
    tensors = [
        (f"{name} ({letter})", tensor)
        for letter, matrices in (("A", adapter.down), ("B", adapter.up))
        for name, tensor in matrices.items()
    ]
    if wrong := [
        f"{name} in {tensor.dtype}" for name, tensor in tensors if tensor.dtype not in DTYPES
    ]:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise AdapterError(f"an adapter's tensors must be in {known}; not {listed(wrong)}")
    if wrong := [name for name, tensor in tensors if not is_finite(tensor)]:
        raise AdapterError(f"the adapter has numbers that are not finite in {listed(wrong)}")
    if wrong := [name for name, value in adapter.scaling.items() if not math.isfinite(value)]:
        raise AdapterError(f"the adapter's scaling is not finite at {listed(wrong)}")


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; by the least and the largest, a tenth of the time of each one's."""
    return not tensor.numel() or all(math.isfinite(end) for end in tensor.aminmax())
