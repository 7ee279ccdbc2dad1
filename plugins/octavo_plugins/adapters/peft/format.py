"""Reads a folder that PEFT's ``save_pretrained`` has written, of any version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from octavo.adapters.tensors import content_hash, read_tensors
from octavo.errors import AdapterError
from octavo.wording import listed
from octavo_plugins.adapters.peft.parameters import (
    is_of_experts,
    module_of,
    parameters,
    side_by_side,
)
from octavo_plugins.adapters.peft.settings import PeftSettings, read_settings
from octavo_registry.adapters import Adapter

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
PICKLE_FILE: Final = "adapter_model.bin"
PREFIXES: Final = ("base_model.model.", "base_model.")
"""Before the base model's own names; the second is of saves that left the wrapper out."""
MATRIX: Final = re.compile(
    r"(?P<name>.+)\.lora_(?P<embedding>embedding_)?(?P<matrix>[AB])(\.(?P<adapter>(?!weight$)[^.]+))?"
    r"(?(embedding)|\.weight)"
)
"""PEFT leaves the adapter's name out; what was saved by hand, or by the first versions, has it."""
BASE_WEIGHT: Final = re.compile(r"(?P<name>.+)\.base_layer\.weight")
NOT_LINEAR: Final = {
    ".lora_magnitude_vector": "DoRA's magnitudes (use_dora)",
    ".lora_B.bias": "biases of LoRA's own (lora_bias)",
    ".token_adapter.": "trained tokens (trainable_token_indices)",
    ".trainable_tokens_": "trained tokens (trainable_token_indices)",
    ".modules_to_save.": "whole modules (modules_to_save)",
    ".bias": "trained biases (bias)",
}
"""Parts of tensors' names, and what they are; none of these is computed."""


class PeftFormat:
    """LoRA and rsLoRA on linears and embeddings, with ranks and alphas by pattern.

    All else is refused by name.
    """

    def read(self, folder: Path) -> Adapter | None:
        """See ``AdapterFormat``; a folder without adapter_config.json is of another format."""
        config = folder / CONFIG_FILE
        if not config.is_file():
            return None
        settings = read_settings(config)
        weights = folder / WEIGHTS_FILE
        if not weights.is_file():
            raise _no_weights(folder)
        tensors = read_tensors(weights)
        base_weights = {
            _without_prefix(match["name"]): tensors.pop(key)
            for key in list(tensors)
            if (match := BASE_WEIGHT.fullmatch(key))
        }
        down, up = _pairs(weights, tensors)
        if alone := sorted(base_weights.keys() - down.keys()):
            raise AdapterError(
                f"{weights} has weights of modules without matrices: {listed(alone)}"
            )
        wrapped = parameters(settings, down)
        _check_targets(config, settings, down.keys() - wrapped.keys())
        asked = {module_of(wrapped.get(name, name)): wrapped.get(name, name) for name in down}
        for name, parameter in wrapped.items():
            pair = down.pop(name), up.pop(name)
            if is_of_experts(parameter):
                pair = side_by_side(*pair, settings.rank(parameter))
            down[module_of(parameter)], up[module_of(parameter)] = pair
        scaling = {name: settings.scaling(asked[name]) for name in down}
        _check_ranks(config, {name: settings.rank(asked[name]) for name in down}, down)
        return Adapter(
            rank=max((matrix.shape[0] for matrix in down.values() if matrix.dim()), default=0),
            scaling=scaling,
            down=down,
            up=up,
            content_hash=content_hash(down, up, scaling),
            base_model=settings.base_model,
            base_weights=base_weights,
            targets=settings.listed_modules(),
        )


def _no_weights(folder: Path) -> AdapterError:
    if (folder / PICKLE_FILE).exists():
        return AdapterError(
            f"{folder} has its weights only as {PICKLE_FILE}: pickle files are never opened, as "
            "they can run code; save the adapter with PEFT 0.6 or newer"
        )
    return AdapterError(f"{folder} has {CONFIG_FILE}, but no {WEIGHTS_FILE}")


def _pairs(
    path: Path, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A and B by the base model's names; each needs the other, and nothing else may be there."""
    matrices: dict[str, dict[str, Tensor]] = {"A": {}, "B": {}}
    keys: dict[tuple[str, str], str] = {}
    others, adapters = [], set()
    for key, tensor in tensors.items():
        match = MATRIX.fullmatch(key)
        if match is None:
            others.append(key)
            continue
        matrix, name = match["matrix"], _without_prefix(match["name"])
        if (first := keys.setdefault((matrix, name), key)) != key:
            both = sorted((first, key))
            raise AdapterError(f"{path} has one matrix under two names: {listed(both)}")
        matrices[matrix][name] = tensor
        adapters.add(match["adapter"])
    if others:
        raise AdapterError(_why_not(path, others))
    if len(adapters) > 1:
        names = sorted(name or "one without a name" for name in adapters)
        raise AdapterError(f"{path} holds more than one adapter: {listed(names)}")
    for one, other in ("AB", "BA"):
        if alone := sorted(matrices[one].keys() - matrices[other].keys()):
            raise AdapterError(f"{path} has lora_{one} without lora_{other} for {listed(alone)}")
    if not matrices["A"]:
        raise AdapterError(f"{path} has no tensors: the adapter would change nothing")
    return matrices["A"], matrices["B"]


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _why_not(path: Path, keys: list[str]) -> str:
    for part, meaning in NOT_LINEAR.items():
        if found := [key for key in keys if part in key]:
            return f"{path} has {meaning}, which are not supported: {listed(found)}"
    return (
        f"{path} has tensors that are no LoRA matrices: {listed(keys)}; weights of the base model "
        "that were saved along (save_embedding_layers) must be left out"
    )


def _check_targets(path: Path, settings: PeftSettings, names: Iterable[str]) -> None:
    """PEFT itself would leave such tensors out."""
    if stray := sorted(name for name in names if not settings.is_target(name)):
        raise AdapterError(
            f"{path}: target_modules, layers_to_transform or exclude_modules leave out what the "
            f"adapter has tensors of: {listed(stray)}"
        )


def _check_ranks(path: Path, ranks: Mapping[str, int], down: Mapping[str, Tensor]) -> None:
    """The scaling is made with the rank that the settings say."""
    wrong = [
        f"{name} ({[*matrix.shape]}, not {ranks[name]} rows)"
        for name, matrix in down.items()
        if matrix.shape[:1] != (ranks[name],)
    ]
    if wrong:
        raise AdapterError(
            f"{path}: r and rank_pattern are not the ranks of the adapter's A matrices: "
            f"{listed(wrong)}"
        )
