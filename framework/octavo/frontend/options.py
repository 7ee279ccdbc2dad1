"""Keyword arguments to ``EngineConfig``: each field of its dataclasses is an option by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

import msgspec

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.vllm_names import VALUES, as_keywords, here
from octavo_registry.naming import meant

# Options of the public interface that nothing implements yet, with the one value that asks for
# nothing; any other is an error, since ignoring it would change what the caller gets.
NOT_AVAILABLE: Final[Mapping[str, object]] = {
    "speculative_config": None,
}

Plugin = str | ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a front end starts with: the config that crosses to the engine, and the plugins."""

    config: EngineConfig
    plugins: tuple[Plugin | object, ...] = ()
    """Import paths, or plugin objects where the engine runs in this process."""
    disable_plugins: tuple[str, ...] = ()


def read_options(options: Mapping[str, object], *, caller: str) -> EngineOptions:
    """Sort flat options into an ``EngineConfig`` and check their types.

    ``caller`` is the function that a TypeError about an unknown option names. None means the
    default where an option's type does not contain None.
    """
    if options.get("model") is None:
        raise ConfigError("model=None must be a folder or a name")
    check_names(options, caller=caller)
    homes = _homes()
    nested: dict[str, Any] = {}
    plugins: dict[str, tuple[Any, ...]] = {}
    for name, value in options.items():
        if name in ("plugins", "disable_plugins"):
            plugins[name] = _as_tuple(name, value)
        elif name in NOT_AVAILABLE:
            if value != NOT_AVAILABLE[name]:
                raise ConfigError(f"{name}={value!r} is not available yet; leave it out")
        elif value is not None or homes[name].takes_none:
            group = homes[name].group
            target = nested if group is None else nested.setdefault(group, {})
            value = _plain(value)
            if isinstance(value, (str, int)):
                value = VALUES.get(name, {}).get(value, value)
            target[name] = value
    try:
        config = msgspec.convert(nested, EngineConfig)
        msgspec.msgpack.encode(config)  # as it crosses to an engine process
    except msgspec.ValidationError as error:
        raise ConfigError(_bad_type(error, options)) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"options must be text, numbers, and lists or dicts of them: {error}"
        ) from error
    for name in plugins.get("disable_plugins", ()):
        if not isinstance(name, str):
            raise ConfigError(f"disable_plugins={options['disable_plugins']!r} must be names")
    return EngineOptions(config=config, **plugins)


def check_names(options: Iterable[str], *, caller: str) -> None:
    """Raise the TypeError of a function that gets a keyword which is no option."""
    known = [*_homes(), *NOT_AVAILABLE, "plugins", "disable_plugins"]
    for name in options:
        if name not in known:
            raise TypeError(_unknown(name, caller, known))


@dataclass(frozen=True, slots=True)
class _Home:
    group: str | None
    """The field of EngineConfig whose dataclass holds the option; None: EngineConfig itself."""
    takes_none: bool


@cache
def _homes() -> dict[str, _Home]:
    homes = {}
    for group, hint in get_type_hints(EngineConfig).items():
        if is_dataclass(hint):
            hints = get_type_hints(hint)
            for field in fields(hint):
                homes[field.name] = _Home(group, type(None) in get_args(hints[field.name]))
        else:
            homes[group] = _Home(None, type(None) in get_args(hint))
    return homes


def _as_tuple(name: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name}={value!r} must be a list")
    return tuple(value)


def _plain(value: object) -> object:
    """Spell out the two kinds of object that callers have at hand: paths and torch dtypes."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value


def _unknown(name: str, caller: str, known: list[str]) -> str:
    near = meant(name, known)
    hint = f"; close: {', '.join(near)}" if near else ""
    there = here(name)
    if there is not None:
        hint = f", vLLM's; here: {as_keywords(there)}"
    return f"{caller}() got an unexpected keyword argument {name!r}{hint}"


def _bad_type(error: msgspec.ValidationError, options: Mapping[str, object]) -> str:
    """Msgspec says "Expected `int`, got `str` - at `$.cache.block_size`"."""
    text, _, place = str(error).partition(" - at ")
    name = next(part for part in reversed(re.findall(r"\w+", place)) if part in options)
    return f"{name}={options[name]!r}: {text[:1].lower()}{text[1:].replace('`', '')}"
