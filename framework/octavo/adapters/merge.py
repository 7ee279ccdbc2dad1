"""A checkpoint with an adapter multiplied into its weights: a model of its own."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from octavo.adapters.check import matching_names
from octavo.errors import AdapterError, ConfigError
from octavo.messages import LinearSize
from octavo.weights.checkpoint import Checkpoint
from octavo.wording import listed
from octavo_registry.adapters import Adapter

COPIED: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
"""Suffixes of what goes along: settings, tokenizers, templates."""
DTYPES: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def write_merged(
    folder: Path,
    checkpoint: Checkpoint,
    adapter: Adapter,
    linears: Mapping[str, LinearSize],
    output: Path,
    *,
    tied: Collection[str] = (),
) -> None:
    """Write the model of ``folder`` to ``output``, which must not be there, weights and settings.

    ``adapter`` has been checked against ``linears``, of which ``tied`` share a weight. Files keep
    their names and tensors their dtypes; products are of float32. What is written is whole, or not
    there at all.
    """
    from safetensors.torch import save_file

    if output.exists():
        raise ConfigError(f"{output} is there already; give a folder that is not")
    if both := sorted(adapter.down.keys() & set(tied)):
        raise AdapterError(
            f"the model ties both ends of its vocabulary, and the adapter changes {listed(both)}, "
            "so that what is merged would be another model; serve it as an adapter"
        )
    if experts := [name for name in adapter.down if linears[name].experts > 1]:
        raise AdapterError(
            f"experts are not merged: {listed(experts)}; serve the adapter with lora_experts"
        )
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _copy_settings(folder, partial)
        merged = _merged(checkpoint, adapter, linears)
        for path, group in itertools.groupby(merged, key=lambda each: each[0]):
            tensors = {name: tensor for _, name, tensor in group}
            save_file(tensors, partial / path.name, metadata={"format": "pt"})
            # It comes without leave for others to read it.
            (partial / path.name).chmod(partial.stat().st_mode & 0o666)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_settings(folder: Path, target: Path) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.suffix in COPIED:
            shutil.copyfile(path, target / path.name)
    templates = folder / "additional_chat_templates"
    if templates.is_dir():
        shutil.copytree(templates, target / templates.name)


def _merged(
    checkpoint: Checkpoint, adapter: Adapter, linears: Mapping[str, LinearSize]
) -> Iterator[tuple[Path, str, Tensor]]:
    stored = {
        entry.name.removesuffix(".weight"): entry.name
        for entries in checkpoint.files.values()
        for entry in entries
        if entry.name.endswith(".weight")
    }
    weights = {
        stored[theirs]: ours for ours, theirs in matching_names(adapter.down, stored).items()
    }
    for path, key, tensor in checkpoint.tensors():
        name = weights.get(key)
        yield path, key, tensor if name is None else _sum(key, tensor, adapter, name, linears[name])


def _sum(key: str, weight: Tensor, adapter: Adapter, name: str, size: LinearSize) -> Tensor:
    if weight.dtype not in DTYPES:
        raise AdapterError(
            f"{key} is in {weight.dtype}: an adapter can be merged into weights that nothing "
            "quantizes only"
        )
    change_OI = adapter.scaling[name] * (adapter.up[name].float() @ adapter.down[name].float())
    change = change_OI.mT if size.transposed else change_OI
    if change.shape != weight.shape:
        raise AdapterError(f"{key} is {[*weight.shape]}, not {[*change.shape]}")
    return (weight.float() + change).to(weight.dtype).contiguous()
