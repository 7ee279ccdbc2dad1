"""Typed options of plugins: declared by a plugin, given by the user as ``--plugin.NAME.KEY``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo_registry.errors import DuplicateNameError, PluginError, UnknownNameError
from octavo_registry.lazy import FRAMEWORK
from octavo_registry.naming import close_or_known

OptionType = type[str] | type[int] | type[float] | type[bool]
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that a plugin declared."""

    plugin: str
    key: str
    type: OptionType
    default: Any
    help: str

    def parse(self, value: object) -> Any:
        """Return the value in the option's type; a string is read as from a command line."""
        if isinstance(value, str) and self.type is not str:
            try:
                return _BOOLEANS[value.lower()] if self.type is bool else self.type(value)
            except (KeyError, ValueError):
                raise self._wrong_type(value) from None
        if self.type is float and type(value) is int:
            return float(value)
        if type(value) is not self.type:
            raise self._wrong_type(value)
        return value

    def _wrong_type(self, value: object) -> PluginError:
        return PluginError(
            f"option {self.key}={value!r} of plugin {self.plugin!r} must be of type "
            f"{self.type.__name__}: {self.help}"
        )


def takes_options(function: Callable[..., Any]) -> bool:
    """Whether it has an argument ``options`` that can be given by its name alone."""
    try:
        options = inspect.signature(function).parameters.get("options")
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return False
    return options is not None and options.kind is options.KEYWORD_ONLY


class OptionRegistry:
    """The options of all plugins and their values; each plugin declares under its own name."""

    def __init__(self) -> None:
        self.plugin = FRAMEWORK
        """The plugin that is registering now; the host sets it."""
        self._options: dict[str, dict[str, Option]] = {}
        self._values: dict[tuple[str, str], Any] = {}

    def add(self, key: str, type: OptionType, default: Any, help: str) -> None:
        """Declare an option of the registering plugin; a default of None means "not given"."""
        mine = self._options.setdefault(self.plugin, {})
        if key in mine:
            raise DuplicateNameError(f"plugin {self.plugin!r} declares option {key!r} twice")
        if type not in (str, int, float, bool):
            raise PluginError(
                f"plugin {self.plugin!r} declares option {key!r} of type {type!r}; "
                f"use str, int, float or bool"
            )
        option = Option(plugin=self.plugin, key=key, type=type, default=default, help=help)
        if default is not None:
            option.parse(default)
        mine[key] = option

    def declared(self) -> list[Option]:
        """Return all options, by plugin and key."""
        return [option for _, o in sorted(self._options.items()) for _, option in sorted(o.items())]

    def withdraw(self, plugin: str) -> None:
        """Forget what a plugin declared."""
        self._options.pop(plugin, None)

    def assign(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the user's values by plugin and key; unknown or ill-typed ones are errors."""
        for plugin, given in values.items():
            known = self._options.get(plugin)
            if known is None:
                raise UnknownNameError(
                    f"no plugin with options is named {plugin!r}; "
                    f"{close_or_known(plugin, self._options)}"
                )
            for key, value in given.items():
                self._values[plugin, key] = self._option(plugin, key).parse(value)

    def of(self, plugin: str) -> Mapping[str, Any]:
        """Return all of a plugin's options by key; empty for one that declares none."""
        return {key: self.get(plugin, key) for key in self._options.get(plugin, {})}

    def bind(self, plugin: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a plugin's function or class its options, if it has a keyword ``options``."""
        if not takes_options(function):
            return function
        return partial(function, options=self.of(plugin))

    def get(self, plugin: str, key: str) -> Any:
        """Return the user's value, or the default."""
        option = self._option(plugin, key)
        return self._values.get((plugin, key), option.default)

    def _option(self, plugin: str, key: str) -> Option:
        known = self._options.get(plugin, {})
        if key not in known:
            raise UnknownNameError(
                f"plugin {plugin!r} has no option {key!r}; {close_or_known(key, known)}"
            )
        return known[key]
