"""What a model makes of a text's hidden states, as its folder says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from octavo.errors import ModelError
from octavo.wording import listed, shown
from octavo_registry import ModelCapabilities
from octavo_registry.cache import Sees

T = TypeVar("T")
D = TypeVar("D")
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
        # Some list prompts that are empty.
        names = listed([name for name, text in self.prompts.items() if text])
        prompts = f"; prompts {names}" if names else ""
        return f"embed: {', '.join(parts)}; from {self.source}{prompts}"


def resolve_pooling(path: Path, architecture: str, sees: Sees) -> PoolingSetup:
    """Ask sentence-transformers' files; without them it is the mean, at unit length."""
    if not (path / "modules.json").is_file():
        return PoolingSetup(
            collect="mean", unit_length=True, sees=sees, source=f"the name {architecture}"
        )
    modules = _modules(path)
    pooling = _Settings(path / modules["Pooling"] / "config.json")
    if not pooling.given:
        raise ModelError(f"{pooling.file} says nothing of how tokens are pooled")
    texts = _Settings(path / "config_sentence_transformers.json")
    prompts = texts.get("prompts", dict, {})
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise ModelError(f"{texts.file}: the prompt {name!r} is {shown(text)}, not text")
    default = texts.get("default_prompt_name", str, None)
    if default is not None and default not in prompts:
        raise ModelError(
            f"{texts.file}: default_prompt_name={default!r} is none of its prompts: "
            f"{listed([*prompts]) or 'there are none'}"
        )
    transformer = _Settings(path / modules["Transformer"] / "sentence_bert_config.json")
    max_tokens = transformer.get("max_seq_length", int, None)
    if max_tokens is not None and max_tokens < 1:
        raise ModelError(f"{transformer.file}: max_seq_length={max_tokens} must be at least 1")
    return PoolingSetup(
        collect=_collect(pooling),
        unit_length="Normalize" in modules,
        sees=sees,
        source="modules.json",
        prompts=prompts,
        default_prompt=default,
        include_prompt=pooling.get("include_prompt", bool, True),
        max_tokens=max_tokens,
        lower_case=transformer.get("do_lower_case", bool, False),
    )


def _modules(path: Path) -> dict[str, str]:
    """Folders of the modules by kind, in their order."""
    file = path / "modules.json"
    modules = _json(file)
    if not isinstance(modules, list) or not all(
        isinstance(each, dict)
        and isinstance(each.get("type"), str)
        and isinstance(each.get("path", ""), str)
        for each in modules
    ):
        raise ModelError(f"{file} must be a list of modules with a type and a path")
    found = {each["type"].rpartition(".")[2]: each.get("path", "") for each in modules}
    for kind in found:
        if kind not in KNOWN_MODULES:
            raise ModelError(
                f"{file}: module {kind!r} is not known; known: {', '.join(KNOWN_MODULES)}"
            )
    if [*found][:2] != ["Transformer", "Pooling"] or len(found) != len(modules):
        raise ModelError(
            f"{file}: modules {listed([*found]) or 'none'} are not a Transformer, a Pooling and "
            "at most a Normalize, in this order"
        )
    return found


def _collect(pooling: _Settings) -> Literal["first", "last", "mean"]:
    named = pooling.given.get("pooling_mode")
    if named is None:
        named = [
            key.removeprefix("pooling_mode_")
            for key, value in pooling.given.items()
            if key.startswith("pooling_mode_") and value
        ]
    modes = named if isinstance(named, list) else [named]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in MODES:
        raise ModelError(
            f"{pooling.file}: pooling mode {'+'.join(map(str, modes)) or 'none'!r} is not known; "
            f"known: {', '.join(MODES)}"
        )
    return MODES[modes[0]]


class _Settings:
    """The entries of a file; none without it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.given: Any = _json(file)
        if not isinstance(self.given, dict):
            raise ModelError(f"{file} must be an object, not {shown(self.given)}")

    def get(self, name: str, kind: type[T], default: D) -> T | D:
        """An entry of that kind; where there is none, or null, the default."""
        value = self.given.get(name)
        if value is None:
            return default
        if type(value) is not kind:
            raise ModelError(f"{self.file}: {name}={shown(value)} must be of type {kind.__name__}")
        return value


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
