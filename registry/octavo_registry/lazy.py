"""Registries of names whose targets are imported when they are first loaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from octavo_registry.errors import DuplicateNameError, PluginError, UnknownNameError
from octavo_registry.faults import Faults
from octavo_registry.naming import close_or_known

log = logging.getLogger(__name__)

T = TypeVar("T")

_TARGET = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")
FRAMEWORK = "octavo"
"""The origin of entries that no plugin added."""


def load_target(target: str) -> Any:
    """What "package.module:attribute" names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def missing_members(made: object, protocol: type[Any]) -> list[str]:
    """Names that a Protocol asks for and an object has not; ``samples`` are for the kit alone."""
    wanted = {
        name
        for base in protocol.__mro__
        if base.__module__.startswith("octavo")
        for name in (*vars(base), *vars(base).get("__annotations__", {}))
        if not name.startswith("_") and name != "samples"
    }
    return sorted(name for name in wanted if not hasattr(made, name))


def former_members(made: object, formerly: Mapping[str, str]) -> str:
    """Say of what an object still has under its old name what is there instead."""
    return "".join(f"; {old} is now {new}" for old, new in formerly.items() if hasattr(made, old))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One registered name."""

    name: str
    target: str
    plugin: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    replace: bool = False


class LazyRegistry(Generic[T]):
    """Names of one kind. A target is called to make a T: a class, or a function that returns one.

    ``metadata`` declares by name what ``add`` accepts beside the target, each with its default.
    A plugin whose entry of an ``essential`` kind was loaded is never quarantined. What a target
    makes has the members of one of ``makes``.
    """

    def __init__(
        self,
        kind: str,
        *,
        faults: Faults | None = None,
        essential: bool = False,
        makes: tuple[type[Any], ...] = (),
        formerly: Mapping[str, str] | None = None,
        **metadata: Any,
    ) -> None:
        self.kind = kind
        self.plugin = FRAMEWORK
        """The plugin that is registering now, the origin of what is added; the host sets it."""
        self._defaults = metadata
        self._essential = essential
        self._makes = makes
        self.formerly: Mapping[str, str] = formerly or {}
        """What objects of the kind, or calls of ``add``, had once, and what they have instead."""
        self.bind_options: Callable[[str, Callable[..., Any]], Callable[..., Any]] = (
            lambda plugin, function: function
        )
        """Gives a plugin's function the plugin's options; the host sets it."""
        self.faults = faults or Faults()
        """Where failures of this registry's targets are counted."""
        self._entries: dict[str, list[Entry]] = {}
        """A name's first entry may be without ``replace``, all others replace; the last counts."""
        self._loaded: dict[str, Callable[..., T]] = {}

    def add(self, name: str, target: str, *, replace: bool = False, **metadata: Any) -> None:
        """Register ``target``, "package.module:Attribute", which nothing imports until ``load``.

        A name that is taken by another target is a DuplicateNameError, unless either of the two was
        added with ``replace``: that one counts, in whichever order plugins are loaded. Of several
        replacing ones the last counts.
        """
        entry = Entry(
            name=name,
            target=self._checked_target(name, target),
            plugin=self.plugin,
            metadata=self._checked_metadata(name, metadata),
            replace=replace,
        )
        known = self._entries.setdefault(name, [])
        if any((k.target, k.metadata) == (target, entry.metadata) for k in known):
            return
        if known and not replace and not known[0].replace:
            raise DuplicateNameError(
                f"{self.kind} {name!r} is {known[0].target!r} of plugin {known[0].plugin!r}, and "
                f"plugin {self.plugin!r} adds {target!r}; rename it, give replace=True, or "
                f"disable one of the plugins"
            )
        known.insert(len(known) if replace else 0, entry)
        if len(known) > 1:
            used, hidden = known[-1], known[-2]
            log.info(
                "%s %r: %s of plugin %r replaces %s of plugin %r",
                *(self.kind, name, used.target, used.plugin, hidden.target, hidden.plugin),
            )

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._entries)

    def info(self, name: str) -> Entry:
        """Return what is known without importing; UnknownNameError lists near matches."""
        if name not in self._entries:
            raise UnknownNameError(
                f"no {self.kind} named {name!r}; {close_or_known(name, self._entries)}"
            )
        return self._entries[name][-1]

    def load(self, name: str) -> Callable[..., T]:
        """Import the name's target, once; a PluginError names plugin and target if that fails."""
        entry = self.info(name)
        if entry.target not in self._loaded:
            if self._essential:
                self.faults.protect(entry.plugin)
            call = f"loading {self.kind} {name!r} from {entry.target!r}"
            with self.faults.guard(entry.plugin, call):
                loaded = load_target(entry.target)
                if not callable(loaded):
                    _, _, attribute = entry.target.partition(":")
                    raise TypeError(f"{attribute} is not callable: {type(loaded).__name__}")
                self._loaded[entry.target] = cast("Callable[..., T]", loaded)
        return self._loaded[entry.target]

    def loaded_modules(self) -> dict[str, str]:
        """Modules of the plugins' targets that were loaded, and whose they are."""
        found = {}
        for entry in (entry for entries in self._entries.values() for entry in entries):
            loaded = self._loaded.get(entry.target)
            if loaded is not None and entry.plugin != FRAMEWORK:
                found[entry.target.partition(":")[0]] = entry.plugin
                found[getattr(loaded, "__module__", "")] = entry.plugin
        return found

    def bind(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function that belongs to an entry its plugin's options, if it asks for them."""
        return self.bind_options(self.info(name).plugin, function)

    def make(self, name: str, *args: Any, **kwargs: Any) -> T:
        """Load the name's target and call it: what it raises, or makes of another kind, names it.

        An OctavoError is the plugin's refusal of what it was given.
        """
        target = self.load(name)
        with self.guard(name, f"making {self.kind} {name!r}"):
            made = self.bind(name, target)(*args, **kwargs)
            self._check_made(target, made)
        return cast("T", made)

    def guard(self, name: str, call: str) -> AbstractContextManager[None]:
        """Name the plugin of an entry, and the call, in what is raised within: see ``Faults``."""
        return self.faults.guard(self.info(name).plugin, call, request=True)

    def _check_made(self, target: object, made: object) -> None:
        lacking = [missing_members(made, protocol) for protocol in self._makes]
        if lacking and all(lacking):
            least = min(lacking, key=len)  # of several, what the first kind asks for
            what = getattr(target, "__qualname__", target)
            raise TypeError(
                f"{what} gave {type(made).__name__}, which lacks {', '.join(least)}"
                f"{former_members(made, self.formerly)}"
            )

    def of_plugin(self, plugin: str) -> list[Entry]:
        """Return the entries that a plugin added, sorted by name."""
        return [e for name in self.names() for e in self._entries[name] if e.plugin == plugin]

    def withdraw(self, plugin: str) -> None:
        """Take back all that a plugin added; what it replaced is in force again."""
        for entry in self.of_plugin(plugin):
            self._entries[entry.name].remove(entry)
            if not self._entries[entry.name]:
                del self._entries[entry.name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _checked_target(self, name: str, target: str) -> str:
        if not isinstance(name, str) or not name:
            raise PluginError(
                f"plugin {self.plugin!r} adds a {self.kind} named {name!r}; use a string"
            )
        if not isinstance(target, str) or not _TARGET.fullmatch(target):
            raise PluginError(
                f"plugin {self.plugin!r} adds {self.kind} {name!r} with target {target!r}; "
                f"write it as 'package.module:Attribute'"
            )
        return target

    def _checked_metadata(self, name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        for key, value in metadata.items():
            if key not in self._defaults:
                now = self.formerly.get(key)
                raise PluginError(
                    f"plugin {self.plugin!r} adds {self.kind} {name!r} with {key}=; "
                    + (f"that is now {now}=" if now else close_or_known(key, self._defaults))
                )
            wanted = type(self._defaults[key])
            if not isinstance(value, wanted):
                raise PluginError(
                    f"plugin {self.plugin!r} adds {self.kind} {name!r} with {key}={value!r}, "
                    f"which must be of type {wanted.__name__}"
                )
        return {**self._defaults, **metadata}
