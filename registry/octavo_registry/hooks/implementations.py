"""Finds a plugin's hook implementations, and refuses what pluggy would pass over in silence."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pluggy

from octavo_registry.errors import PluginError
from octavo_registry.faults import Faults
from octavo_registry.hooks.guarded import guarded, guarded_wrapper, isolated
from octavo_registry.hooks.markers import hookimpl
from octavo_registry.naming import near_matches
from octavo_registry.registering import hooks_of


def hook_callers(manager: pluggy.PluginManager) -> dict[str, Any]:
    """Return the contract's hooks by name."""
    return {name: caller for name, caller in vars(manager.hook).items() if name[0] != "_"}


def implementations(
    plugin: object, name: str, target: str, manager: pluggy.PluginManager, faults: Faults
) -> ModuleType:
    """Return the plugin's implementations, guarded, in a namespace for ``manager.register``."""
    callers = hook_callers(manager)
    found = ModuleType(name)
    for attribute, value in vars(plugin).items() if isinstance(plugin, ModuleType) else ():
        for number, marked in enumerate(hooks_of(value)):
            hook = marked.__name__
            function = guarded(marked, name, hook, faults, registers=True)
            setattr(found, f"{hook} of {attribute} {number}", hookimpl(specname=hook)(function))
    for attribute in dir(plugin):
        options: Any = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            if attribute in callers:
                raise PluginError(
                    f"plugin {name!r} ({target}): {attribute} lacks the @hookimpl decorator"
                )
            continue
        hook = options["specname"] or attribute
        if hook in callers:
            if options["hookwrapper"]:
                raise PluginError(f"plugin {name!r} ({target}): write {attribute} as wrapper=True")
            function = getattr(plugin, attribute)
            caller = callers[hook]
            registers = caller.is_historic()
            if options["wrapper"]:
                function = guarded_wrapper(function, name, hook, faults)
            elif registers or caller.spec.opts["firstresult"]:
                function = guarded(function, name, hook, faults, registers=registers)
            else:
                function = isolated(function, name, hook, faults)
            setattr(found, attribute, hookimpl(**options)(function))
        elif not options["optionalhook"]:
            raise PluginError(
                f"plugin {name!r} ({target}): there is no hook {hook!r}; "
                f"{near_matches(hook, callers)}"
            )
    return found
