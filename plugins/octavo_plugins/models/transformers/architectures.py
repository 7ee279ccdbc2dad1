"""From config.json to a Transformers class: one of the library, or of the model's own folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from octavo.errors import ModelError
from octavo_registry.faults import one_line
from octavo_registry.model import ModelSpec


def is_known(architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether there may be a class; nothing is imported for the answer."""
    return architecture in _library_names() or "AutoModelForCausalLM" in _auto_map(config)


def find_architecture(spec: ModelSpec) -> tuple[type[Any], Any]:
    """The model's class and its config; the folder's own code goes first where it may be run."""
    names = _auto_map(spec.config)
    reference = names.get("AutoModelForCausalLM")
    if reference is None or not spec.trust_remote_code:
        return _of_library(spec, has_own_code=reference is not None)
    if spec.folder is None:
        raise ModelError(f"{spec.architecture} brings its own code, but the model has no folder")
    config_reference = names.get("AutoConfig")
    config_class = (
        _config_class(spec)
        if config_reference is None
        else _from_folder(config_reference, spec.folder)
    )
    return _from_folder(reference, spec.folder), _config_of(spec, config_class)


def _of_library(spec: ModelSpec, *, has_own_code: bool) -> tuple[type[Any], Any]:
    if spec.architecture not in _library_names():
        if has_own_code:
            raise ModelError(
                f"{spec.architecture} is code that comes with the model, in {spec.folder}; read "
                "it, and pass trust_remote_code=True if it may run on this machine"
            )
        raise ModelError(
            f"Transformers {transformers.__version__} has no causal language model "
            f"{spec.architecture}; update it, or use a plugin that has the architecture"
        )
    model_class = getattr(transformers, spec.architecture)
    return model_class, _config_of(spec, _config_class(spec))


def _config_of(spec: ModelSpec, config_class: Any) -> Any:
    try:
        return config_class.from_dict(config_class._decode_special_floats(dict(spec.config)))
    except Exception as error:
        raise ModelError(
            f"{spec.architecture}: {config_class.__name__} refuses config.json: {one_line(error)}"
        ) from error


def _config_class(spec: ModelSpec) -> type[Any]:
    model_type = spec.config.get("model_type")
    known: Mapping[Any, type[Any]] = transformers.CONFIG_MAPPING
    if model_type not in known:
        raise ModelError(
            f"{spec.architecture}: Transformers {transformers.__version__} does not know "
            f"model_type={model_type!r} of config.json"
        )
    return known[model_type]


def _library_names() -> set[str]:
    names: set[str] = set()
    for found in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names.update([found] if isinstance(found, str) else found)
    return names


def _auto_map(config: Mapping[str, Any]) -> Mapping[str, str]:
    return config.get("auto_map") or {}


def _from_folder(reference: str, folder: Path) -> type[Any]:
    """Import a class from the folder's files; a reference to another repository is refused."""
    if "--" in reference:
        raise ModelError(
            f"{folder / 'config.json'}: auto_map names {reference!r}, code of another repository; "
            "put its files beside config.json and name them without 'REPOSITORY--'"
        )
    found: type[Any] = get_class_from_dynamic_module(reference, folder, local_files_only=True)
    return found
