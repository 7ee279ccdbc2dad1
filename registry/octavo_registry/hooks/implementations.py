"""Finds a plugin's hook implementations, and refuses what pluggy would pass over in silence."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pluggy

from octavo_registry.errors import PluginError
from octavo_registry.faults import Faults
from octavo_registry.hooks.guarded import (
    choosing,
    guarded_wrapper,
    isolated,
    registering,
    with_options,
)
from octavo_registry.hooks.listening import Listener
from octavo_registry.hooks.markers import hookimpl
from octavo_registry.lazy import LazyRegistry
from octavo_registry.naming import close_or_known
from octavo_registry.options import OptionRegistry
from octavo_registry.registering import hooks_of


def with_arguments(told: str, manager: pluggy.PluginManager) -> str:
    """Add to what pluggy says of an implementation how its hook is called."""
    found = re.search(r"for hook '(\w+)'.* can not be found", told)
    if found is None:
        return told
    arguments = ", ".join(hook_callers(manager)[found[1]].spec.argnames)
    return f"{told}; it is called {found[1]}({arguments})"


def hook_callers(manager: pluggy.PluginManager) -> dict[str, Any]:
    """Return the contract's hooks by name."""
    return {name: caller for name, caller in vars(manager.hook).items() if name[0] != "_"}


def implementations(
    plugin: object,
    name: str,
    target: str,
    manager: pluggy.PluginManager,
    faults: Faults,
    options: OptionRegistry,
    choices: Mapping[str, LazyRegistry[Any]],
    listener: Listener,
) -> ModuleType:
    """Return the plugin's implementations, guarded, in a namespace for ``manager.register``.

    ``choices`` are the registries of which a hook's answer must be a name. ``listener`` hears of
    events for the plugin.
    """
    callers = hook_callers(manager)
    found = ModuleType(name)
    for attribute, value in vars(plugin).items() if isinstance(plugin, ModuleType) else ():
        for number, marked in enumerate(hooks_of(value)):
            hook = marked.__name__
            function = registering(marked, name, hook, faults)
            setattr(found, f"{hook} of {attribute} {number}", hookimpl(specname=hook)(function))
    for attribute in dir(plugin):
        given: Any = manager.parse_hookimpl_opts(plugin, attribute)
        if given is None:
            if attribute in callers:
                raise PluginError(
                    f"plugin {name!r} ({target}): {attribute} lacks the @hookimpl decorator"
                )
            continue
        hook = given["specname"] or attribute
        if hook in callers:
            if given["hookwrapper"]:
                raise PluginError(f"plugin {name!r} ({target}): write {attribute} as wrapper=True")
            function = getattr(plugin, attribute)
            caller = callers[hook]
            if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
                raise PluginError(f"plugin {name!r} ({target}): {attribute} must not be async")
            if caller.is_historic():
                function = registering(function, name, hook, faults)
            else:
                function = with_options(function, name, options)
                is_event = not caller.spec.opts["firstresult"]
                if is_event and given["wrapper"]:
                    raise PluginError(
                        f"plugin {name!r} ({target}): {attribute} must not be a wrapper: an event "
                        "has no result, and each plugin hears of it in a thread of its own"
                    )
                if is_event:
                    function = isolated(function, name, hook, faults, listener)
                elif given["wrapper"]:
                    function = guarded_wrapper(function, name, hook, faults)
                else:
                    function = choosing(function, name, hook, faults, choices.get(hook))
            setattr(found, attribute, hookimpl(**given)(function))
        elif not given["optionalhook"]:
            raise PluginError(
                f"plugin {name!r} ({target}): there is no hook {hook!r}; "
                f"{close_or_known(hook, callers)}"
            )
    return found
