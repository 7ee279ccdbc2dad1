"""What a model makes of a text's hidden states, as its folder says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from octavo.errors import ModelError
from octavo.wording import listed
from octavo_registry import ModelCapabilities
from octavo_registry.cache import Sees

MODES: Final[Mapping[str, Literal["first", "last", "mean"]]] = {
    "cls": "first",
    "cls_token": "first",
    "lasttoken": "last",
    "mean": "mean",
    "mean_tokens": "mean",
}
"""Ways of sentence-transformers' Pooling, by the words after "pooling_mode"."""
KNOWN_MODULES: Final = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSetup:
    """How texts become vectors."""

    collect: Literal["first", "last", "mean"]
    """Which of a text's tokens count."""
    unit_length: bool
    sees: Sees
    """What a token sees of its text."""
    source: str
    """Who says so."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that stand before others, by what these are for."""
    default_prompt: str | None = None
    """The name of the one that is taken where none is named."""
    include_prompt: bool = True
    """Whether the prompt's tokens count as the text's."""
    max_tokens: int | None = None
    """Most that a text may have; None: what the model can take."""
    lower_case: bool = False
    """Whether texts are lower-cased before they are tokenised."""

    def __str__(self) -> str:
        parts = [self.collect if self.collect == "mean" else f"{self.collect} token"]
        parts += ["unit length"] * self.unit_length
        prompts = f"; prompts {listed([*self.prompts])}" if self.prompts else ""
        return f"embed: {', '.join(parts)}; from {self.source}{prompts}"


def resolve_pooling(path: Path, architecture: str, sees: Sees) -> PoolingSetup:
    """Ask sentence-transformers' files; without them it is the mean, at unit length."""
    if not (path / "modules.json").is_file():
        return PoolingSetup(
            collect="mean", unit_length=True, sees=sees, source=f"the name {architecture}"
        )
    modules = _modules(path)
    pooling = _pooling(path, modules)
    settings = _json(path / "config_sentence_transformers.json")
    transformer = _json(path / modules["Transformer"] / "sentence_bert_config.json")
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(
            f"{path / 'config_sentence_transformers.json'}: default_prompt_name={default!r} is "
            f"none of its prompts: {listed([*prompts]) or 'there are none'}"
        )
    return PoolingSetup(
        collect=_collect(path, pooling),
        unit_length="Normalize" in modules,
        sees=sees,
        source="modules.json",
        # Some list prompts that are empty: they are the same as none.
        prompts={name: text for name, text in prompts.items() if text or name == default},
        default_prompt=default,
        include_prompt=bool(pooling.get("include_prompt", True)),
        max_tokens=transformer.get("max_seq_length"),
        lower_case=bool(transformer.get("do_lower_case", False)),
    )


def _modules(path: Path) -> dict[str, str]:
    """Folders of the modules by kind, in their order."""
    file = path / "modules.json"
    modules = _json(file)
    if not isinstance(modules, list) or not all(
        isinstance(each, dict) and isinstance(each.get("type"), str) for each in modules
    ):
        raise ModelError(f"{file} must be a list of modules with a type")
    found = {str(each["type"]).rpartition(".")[2]: str(each.get("path", "")) for each in modules}
    for kind in found:
        if kind not in KNOWN_MODULES:
            raise ModelError(
                f"{file}: module {kind!r} is not known; known: {', '.join(KNOWN_MODULES)}"
            )
    if [*found][:2] != ["Transformer", "Pooling"] or len(found) != len(modules):
        raise ModelError(
            f"{file}: modules {listed([*found])} are not a Transformer, a Pooling and at most a "
            "Normalize, in this order"
        )
    return found


def _pooling(path: Path, modules: Mapping[str, str]) -> Mapping[str, Any]:
    file = path / modules["Pooling"] / "config.json"
    settings = _json(file)
    if not isinstance(settings, dict) or not settings:
        raise ModelError(f"{file} says nothing of how tokens are pooled")
    return settings


def _collect(path: Path, pooling: Mapping[str, Any]) -> Literal["first", "last", "mean"]:
    named = pooling.get("pooling_mode")
    if named is None:
        modes = [
            key.removeprefix("pooling_mode_")
            for key, value in pooling.items()
            if key.startswith("pooling_mode_") and value
        ]
    else:
        modes = [named] if isinstance(named, str) else [*named]
    if len(modes) != 1 or modes[0] not in MODES:
        raise ModelError(
            f"{path}: pooling mode {'+'.join(map(str, modes)) or 'none'!r} is not known; known: "
            f"{', '.join(MODES)}"
        )
    return MODES[modes[0]]


def _json(file: Path) -> Any:
    """The file's content; an empty object without it."""
    if not file.is_file():
        return {}
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is no JSON: {error}") from error


def pooling_of(
    path: Path, architecture: str, capabilities: ModelCapabilities, task: str
) -> PoolingSetup | None:
    """How texts become vectors; None for a model that writes."""
    if task != "embed":
        return None
    return resolve_pooling(path, architecture, capabilities.sees)
