"""Implementations as the host calls them: counted, attributed to their plugin, kept apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Final

from octavo_registry.errors import OctavoError
from octavo_registry.faults import Faults
from octavo_registry.hooks.listening import Listener
from octavo_registry.lazy import LazyRegistry
from octavo_registry.naming import close_or_known
from octavo_registry.options import OptionRegistry, takes_options

log = logging.getLogger(__name__)

SLOW_SECONDS: Final = 1.0
Implementation = Callable[..., Any]


def registering(function: Implementation, plugin: str, hook: str, faults: Faults) -> Implementation:
    """Guard a ``register_*`` implementation: its failure is a PluginError.

    A plugin that fails to register is not loaded, so that there is nothing to quarantine.
    """

    @wraps(function)
    def call(*args: object) -> None:
        with faults.guard(plugin, hook, request=True):
            function(*args)

    return call


def choosing(
    function: Implementation,
    plugin: str,
    hook: str,
    faults: Faults,
    known: LazyRegistry[Any] | None,
) -> Implementation:
    """Guard a ``select_*`` implementation: its failure is a PluginError, and so is its answer.

    That must be None or a text, of ``known`` one of the names.
    """

    @wraps(function)
    def call(*args: object) -> str | None:
        with faults.guard(plugin, hook):
            answer = function(*args)
            if answer is None:
                return None
            if not isinstance(answer, str):
                raise TypeError(f"it returned {type(answer).__name__}, not a text or None")
            if known is not None and answer not in known:
                near = close_or_known(answer, known.names())
                raise ValueError(f"it chose the {known.kind} {answer!r}, which nobody has; {near}")
            return answer

    return call


def with_options(function: Implementation, plugin: str, options: OptionRegistry) -> Implementation:
    """Give an implementation its plugin's options at each call, if it asks for them."""
    if not takes_options(function):
        return function

    @wraps(function)
    def call(*args: object) -> object:
        return function(*args, options=options.of(plugin))

    return call


def isolated(
    function: Implementation, plugin: str, hook: str, faults: Faults, listener: Listener
) -> Implementation:
    """Guard an implementation of an event: its failure is counted and goes no further.

    It runs in a thread of the plugin's own, so that it holds nobody; one that takes long is named
    in the log.
    """

    def hear(args: tuple[object, ...]) -> None:
        began = time.monotonic()
        with suppress(OctavoError), faults.guard(plugin, hook):
            function(*args)
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            log.warning("plugin %r took %.1f s in %s; its events wait", plugin, seconds, hook)

    @wraps(function)
    def call(*args: object) -> None:
        listener.tell(partial(hear, args))

    return call


def guarded_wrapper(
    function: Implementation, plugin: str, hook: str, faults: Faults
) -> Implementation:
    """Guard a ``wrapper=True`` generator: if it fails, the call goes on as if it were not there."""

    @wraps(function)
    def call(*args: object) -> Generator[None, object, object]:
        steps = function(*args)
        try:
            with faults.guard(plugin, hook):
                next(steps)
        except OctavoError:
            return (yield)
        result = yield
        with suppress(OctavoError), faults.guard(plugin, hook):
            try:
                steps.send(result)
            except StopIteration as end:
                return end.value
            raise RuntimeError("a wrapper must yield exactly once")
        return result

    return call
