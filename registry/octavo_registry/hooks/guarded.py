"""Implementations as the host calls them: counted, attributed to their plugin, kept apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import wraps
from typing import Any, Final

from octavo_registry.errors import OctavoError
from octavo_registry.faults import Faults

log = logging.getLogger(__name__)

SLOW_SECONDS: Final = 1.0
Implementation = Callable[..., Any]


def guarded(
    function: Implementation, plugin: str, hook: str, faults: Faults, *, registers: bool
) -> Implementation:
    """Guard a ``register_*`` or ``select_*`` implementation: its failure is a PluginError.

    A plugin that fails to register is not loaded, so that there is nothing to quarantine.
    """

    @wraps(function)
    def call(*args: object) -> object:
        with faults.guard(plugin, hook, request=registers):
            return function(*args)

    return call


def isolated(function: Implementation, plugin: str, hook: str, faults: Faults) -> Implementation:
    """Guard an implementation of an event: its failure is counted and goes no further.

    Whoever tells of the event waits for it, so that one that takes long is named in the log.
    """

    @wraps(function)
    def call(*args: object) -> None:
        began = time.monotonic()
        with suppress(OctavoError), faults.guard(plugin, hook):
            function(*args)
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            log.warning("plugin %r took %.1f s in %s: all wait for it", plugin, seconds, hook)

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
