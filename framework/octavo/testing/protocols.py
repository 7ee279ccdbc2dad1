"""Checks that a registered target loads and has what its Protocol asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from octavo.testing.report import Check
from octavo_registry import (
    AttentionBackend,
    Command,
    GuidedBackend,
    LazyRegistry,
    LogitsProcessor,
    ModalityDecoder,
    Model,
    ModelSource,
    Quantization,
    ReasoningParser,
    RouteGroup,
    Tokenizer,
    ToolParser,
)
from octavo_registry.adapters import AdapterFormat, AdapterResolver
from octavo_registry.executor import Executor
from octavo_registry.faults import FAILURES, one_line
from octavo_registry.lazy import Entry, former_members

PROTOCOLS: dict[str, tuple[type[Any], ...]] = {
    "models": (Model,),
    "modalities": (ModalityDecoder,),
    "tool_parsers": (ToolParser,),
    "reasoning_parsers": (ReasoningParser,),
    "tokenizers": (Tokenizer,),
    "logits_processors": (LogitsProcessor,),
    "guided_backends": (GuidedBackend,),
    "attention_backends": (AttentionBackend,),
    "quantizations": (Quantization,),
    "executors": (Executor,),
    "adapters": (AdapterFormat, AdapterResolver),
    "sources": (ModelSource,),
    "routes": (RouteGroup,),
    "commands": (Command,),
    "inputs": (),
    "multimodal": (),
}
"""What an object of a kind must be, one of these, by the registry's name on the host. Kinds
without are plain functions."""
_LEAST = {"LogitsProcessor.attach": 3, "LogitsProcessor.apply": 3}
"""Methods that may leave out trailing arguments: those that they must take, ``self`` among them."""


def check_target(
    title: str, registry: LazyRegistry[Any], entry: Entry, protocols: tuple[type[Any], ...]
) -> Check:
    """Load the target; compare a class's methods with those of its Protocol."""
    try:
        target = registry.load(entry.name)
    except FAILURES as error:
        return Check(name=title, passed=False, detail=one_line(error))
    if not protocols:
        return Check(name=title, passed=True, detail="a function; it is tried with its model")
    if not isinstance(target, type):
        return Check(name=title, passed=True, detail="not claimed: made by a function, not a class")
    misses: list[str] = min((_misses(target, each) for each in protocols), key=len)
    renamed = former_members(target, registry.formerly) if misses else ""
    return Check(name=title, passed=not misses, detail="; ".join(misses) + renamed)


def _misses(target: type[Any], protocol: type[Any]) -> list[str]:
    """Name the methods that are missing, or that cannot be called as the framework calls them."""
    found = []
    for name, method in vars(protocol).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        mine = inspect.getattr_static(target, name, None)
        if mine is None:
            found.append(f"{target.__name__}.{name} is missing")
        elif inspect.isfunction(mine) and not _accepts(mine, method):
            wanted = f"{name}{inspect.signature(method)}".replace("'", "")  # string annotations
            found.append(f"{target.__name__}.{name} cannot be called as {wanted}")
    return found


def _accepts(mine: Callable[..., Any], wanted: Callable[..., Any]) -> bool:
    """Whether every argument of the Protocol's method can be given, in its place or by name."""
    parameters = inspect.signature(wanted).parameters.values()
    by_place = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    by_name = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    if wanted.__qualname__ in _LEAST:
        counts = range(_LEAST[wanted.__qualname__], len(by_place) + 1)
        return any(_binds(mine, by_place[:count], by_name) for count in counts)
    required = [p for p in by_place if p.default is p.empty]
    return _binds(mine, by_place, by_name) and _binds(mine, required, by_name)


def _binds(mine: Callable[..., Any], places: list[Any], by_name: dict[str, Any]) -> bool:
    try:
        inspect.signature(mine).bind(*places, **by_name)
    except TypeError:
        return False
    return True
