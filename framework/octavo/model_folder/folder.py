"""What a model's folder says about it, with the user's options applied; reads no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config.checks import MAX_COUNT
from octavo.config.engine import DTYPES, ModelConfig, ParallelConfig
from octavo.errors import ConfigError, ModelError
from octavo.model_folder.context_length import resolve_max_model_len
from octavo.model_folder.entries import Entries, check_entries
from octavo.model_folder.header import read_header
from octavo.model_folder.nested import with_text_defaults
from octavo.model_folder.overrides import apply_overrides
from octavo.model_folder.pooling import PoolingSetup, pooling_of
from octavo.model_folder.sources import find_model
from octavo_registry import ModelCapabilities, ModelPart, PluginHost, Task
from octavo_registry.naming import close_or_known

POOLING_TASKS = ("embed", "classify", "score", "reward")
STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model that can be loaded: all questions about its config.json are answered here."""

    path: Path
    config: Mapping[str, Any]
    """config.json with ``hf_overrides`` applied."""
    architecture: str
    implementation: str
    """The registered model that runs it: of the architecture's name, or one that runs others."""
    capabilities: ModelCapabilities
    task: Task
    dtype: str
    """A torch dtype's name: "float32", "bfloat16" or "float16"."""
    max_model_len: int
    """The model's limit when the option is "auto"; what memory allows may be less."""
    vocab_size: int
    """Rows of the logits; the tokenizer may know fewer ids."""
    eos_token_ids: tuple[int, ...]
    generation_config: Mapping[str, Any]
    """generation_config.json; empty when there is none, or with generation_config="none"."""
    quantization: str | None
    """A registered quantization's name; None: plain weights."""
    quantization_config: Mapping[str, Any]
    """As in config.json; empty for plain weights and for weights quantized while loading."""
    pooling: PoolingSetup | None = None
    """How texts become vectors; None: the model writes."""
    parts: tuple[tuple[Path, ModelPart], ...] = ()
    """Folders of other models, whose weights are parts of this one's."""

    def check_parallel(self, parallel: ParallelConfig) -> None:
        """Refuse more ranks than a model may be spread over that cannot be cut so."""
        for name in ("tensor_parallel", "pipeline_parallel"):
            size = getattr(parallel, f"{name}_size")
            if size > 1 and not getattr(self.capabilities, name):
                raise ConfigError(
                    f"{name}_size={size}: {self.architecture} cannot be cut so, as its plugin "
                    f"says (capabilities.{name}); set it to 1"
                )


def open_model(config: ModelConfig, host: PluginHost, *, weights: bool = True) -> ModelFolder:
    """Find the model and resolve its options; what cannot work is refused here, by name.

    Without ``weights`` a source may leave them out of the folder.
    """
    path = find_model(host, config.model, config.revision, weights=weights)
    file = path / "config.json"
    given = apply_overrides(_read_json(file), config.hf_overrides)
    architecture, implementation = _choose_model(config.model_impl, path, given, host)
    capabilities = host.models.info(implementation).metadata["capabilities"]
    parts = _find_parts(file, given, capabilities, host, weights=weights)
    for folder, part in parts:
        own = _object(path, part.config, given.get(part.config))
        given[part.config] = {**_read_json(folder / "config.json"), **own}
    settings = Entries(file, with_text_defaults(given))
    # Language models inside others (vision and the like) have their settings in text_config.
    text = {**settings, **_object(path, "text_config", settings.get("text_config"))}
    check_entries(file, text)
    quantization_config = _object(path, "quantization_config", text.get("quantization_config"))
    quantization_config = quantization_config or _quantization_apart(path)
    task = _resolve_task(config.task, architecture, capabilities)
    pooling = pooling_of(path, architecture, capabilities, task)
    generation = path / "generation_config.json"
    generation_config = _read_json(generation) if generation.is_file() else {}
    return ModelFolder(
        path=path,
        config=settings,
        architecture=architecture,
        implementation=implementation,
        capabilities=capabilities,
        task=task,
        dtype=_resolve_dtype(config.dtype, path, text),
        max_model_len=resolve_max_model_len(
            config.max_model_len, path, text, most=None if pooling is None else pooling.max_tokens
        ),
        vocab_size=_vocab_size(path, text),
        eos_token_ids=_eos_token_ids(path, text, generation_config, config.hf_overrides),
        generation_config=generation_config if config.generation_config == "auto" else {},
        quantization=_resolve_quantization(
            config.quantization, quantization_config, architecture, capabilities, host
        ),
        quantization_config=quantization_config,
        pooling=pooling,
        parts=tuple(parts),
    )


def _find_parts(
    file: Path,
    settings: Mapping[str, Any],
    capabilities: ModelCapabilities,
    host: PluginHost,
    *,
    weights: bool,
) -> list[tuple[Path, ModelPart]]:
    found = []
    for part in capabilities.parts:
        name = settings.get(part.model)
        if name is not None:
            if not isinstance(name, str):
                raise ModelError(f"{file}: {part.model}={name!r} must be the name of a model")
            found.append((find_model(host, name, weights=weights), part))
    return found


def _object(path: Path, key: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{path / 'config.json'}: {key}={value!r} must be an object")
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}; it is not a model's folder") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is no JSON object but {type(value).__name__}")
    return value


def _choose_model(
    model_impl: str, path: Path, settings: Mapping[str, Any], host: PluginHost
) -> tuple[str, str]:
    """The architecture, and the registered model that runs it."""
    names = settings.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ModelError(
            f"{path / 'config.json'}: architectures={names!r} names no model class; "
            "name one with hf_overrides={'architectures': [...]}"
        )
    if model_impl not in ("auto", "octavo"):
        if model_impl not in host.models:
            raise ConfigError(
                f"model_impl={model_impl!r} is neither 'auto' nor 'octavo' nor a registered model; "
                f"{close_or_known(model_impl, host.models.names())}"
            )
        return names[0], model_impl
    for name in names:
        if name in host.models:
            return name, name
    if model_impl == "auto":
        for name in names:
            chosen = host.hook.select_model(architecture=name, config=settings)
            if chosen is not None:
                return name, chosen
    raise ModelError(
        f"{path / 'config.json'}: no plugin has the architecture {names[0]!r}; "
        f"{close_or_known(names[0], host.models.names())}"
    )


def _resolve_task(task: str, architecture: str, capabilities: ModelCapabilities) -> Task:
    for known in capabilities.tasks:
        if task in ("auto", known):
            return known
    if task in POOLING_TASKS:
        raise ConfigError(
            f"task={task!r} is not available for {architecture} yet; the architectures that embed "
            "texts: docs/models.md"
        )
    raise ConfigError(
        f"task={task!r} is not among those of {architecture}: {', '.join(capabilities.tasks)}"
    )


def _resolve_dtype(dtype: str, path: Path, text: Mapping[str, Any]) -> str:
    if dtype != "auto":
        return dtype
    declared = text.get("dtype") or text.get("torch_dtype") or _stored_dtype(path)
    name = str(declared).removeprefix("torch.")
    if name not in DTYPES[1:]:
        raise ModelError(
            f"{path / 'config.json'}: dtype {declared!r} cannot be computed in; "
            f"pass dtype, one of: {', '.join(DTYPES[1:])}"
        )
    return name


def _stored_dtype(path: Path) -> str:
    """The dtype of the first floating tensor; float32 without weights."""
    for file in sorted(path.glob("*.safetensors"))[:1]:
        for entry in read_header(file):
            if entry.dtype in STORED_DTYPES:
                return STORED_DTYPES[entry.dtype]
    return "float32"


def _vocab_size(path: Path, text: Mapping[str, Any]) -> int:
    size = text.get("vocab_size")
    if type(size) is not int or not 0 < size <= MAX_COUNT:
        raise ModelError(
            f"{path / 'config.json'}: vocab_size={size!r} must be a positive integer below 2**31"
        )
    return size


def _eos_token_ids(
    path: Path, text: Mapping[str, Any], generation: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[int, ...]:
    """As in Transformers generation_config.json goes first; an override goes before both."""
    if "eos_token_id" in overrides or generation.get("eos_token_id") is None:
        ids = text.get("eos_token_id")
    else:
        ids = generation["eos_token_id"]
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise ModelError(f"{path}: eos_token_id={ids!r} must be token ids")
    return tuple(ids)


def _quantization_apart(path: Path) -> dict[str, Any]:
    """What ModelOpt writes into a file of its own; empty where there is none."""
    file = path / "hf_quant_config.json"
    if not file.is_file():
        return {}
    stored = _object(path, "quantization", _read_json(file).get("quantization"))
    return {"quant_method": "modelopt", **stored}


def _resolve_quantization(
    requested: str | None,
    stored: Mapping[str, Any],
    architecture: str,
    capabilities: ModelCapabilities,
    host: PluginHost,
) -> str | None:
    """The checkpoint's own method, or the one to apply while loading; never left out in silence."""
    name = stored.get("quant_method") if stored else requested
    if not stored and name is None:
        return None
    if requested not in (None, name):
        raise ConfigError(f"quantization={requested!r}, but the weights are quantized as {name!r}")
    usable = host.quantizations.names()
    if "*" not in capabilities.quantizations:
        usable = [key for key in usable if key in capabilities.quantizations]
    if name not in usable:
        hint = f"what does: {', '.join(usable)}" if usable else "none is available yet"
        raise ConfigError(f"quantization {name!r} does not work with {architecture}; {hint}")
    return str(name)
