"""Plugin failures: counted by plugin and call, and a pause for plugins that fail by themselves.

A plugin that fails without a request's data at fault is quarantined: its calls are refused for 30
seconds, then one call is let through; if that succeeds the quarantine is over, else it starts anew.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from octavo_registry.errors import OctavoError, PluginError, is_framework_error
from octavo_registry.events import PluginFailure

FAILURES: Final = (Exception, SystemExit)
"""What a plugin may raise that is its failure and nobody else's: ``sys.exit()`` ends no server."""
QUARANTINE_SECONDS = 30.0
MAX_LINE_CHARS = 500
"""Kept of an exception's message: torch puts the stack of its C++ code there."""
_OBJECT = re.compile(
    r"(?: (?:in|of|from|at|on|for))? ?"
    r"<(?:[^<>]|<(?:locals|lambda)>)*(?: at 0x[0-9a-fA-F]+|_io\.[^<>]*)>"
)
"""How Python shows an object; libraries show the file that they read from so."""


def one_line(error: BaseException) -> str:
    """Return an exception's type and message on a single line, without objects of this process."""
    text = without_objects(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:MAX_LINE_CHARS]}"


def without_objects(text: str) -> str:
    """Return a message without what it shows of objects: types of Python's, and addresses."""
    return _OBJECT.sub("", text) if "<" in text else text


@dataclass(slots=True)
class PluginUse:
    """How often a plugin was called, how many of these calls failed, and their time in all."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    """On the clock: a call that waits for something has its waiting in it."""
    dropped_events: int = 0
    """It was too slow for."""


@dataclass(slots=True)
class _Quarantine:
    until: float
    cause: str


class Faults:
    """One host's failure counters and quarantines; may be used from any thread."""

    def __init__(
        self,
        *,
        announce: Callable[[PluginFailure], None] = lambda failure: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._announce = announce
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._uses: dict[str, PluginUse] = defaultdict(PluginUse)
        self._quarantines: dict[str, _Quarantine] = {}
        self._protected: set[str] = set()
        self._pauses = True

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Failures so far by (plugin, call), for metrics."""
        with self._lock:
            return dict(self._counts)

    @property
    def uses(self) -> dict[str, PluginUse]:
        """Guarded calls so far by plugin, for metrics."""
        with self._lock:
            return {plugin: replace(use) for plugin, use in self._uses.items()}

    @property
    def quarantined(self) -> dict[str, float]:
        """Seconds until a plugin in quarantine is tried again; 0 means at its next call."""
        now = self._clock()
        with self._lock:
            return {name: max(0.0, q.until - now) for name, q in self._quarantines.items()}

    def drop(self, plugin: str) -> int:
        """Count an event that the plugin does not hear of; return how many these are."""
        with self._lock:
            self._uses[plugin].dropped_events += 1
            return self._uses[plugin].dropped_events

    def protect(self, plugin: str) -> None:
        """Count this plugin's failures but never quarantine it, as it gives a model in use."""
        with self._lock:
            self._protected.add(plugin)
            self._quarantines.pop(plugin, None)

    @contextmanager
    def without_quarantine(self) -> Iterator[None]:
        """Count failures, and pause no plugin for them: each call of a trial is to be its own."""
        before, self._pauses = self._pauses, False
        try:
            yield
        finally:
            self._pauses = before

    @contextmanager
    def guard(self, plugin: str, call: str, *, request: bool = False) -> Iterator[None]:
        """Count what the plugin raises within, and raise it as a PluginError that names it.

        With ``request`` the call works on a request's data: a failure never leads to quarantine,
        and an OctavoError is the plugin's refusal of that data, which is no failure. Without it a
        plugin in quarantine is refused by a PluginError, and one that raises is quarantined.
        """
        on_trial = False if request else self._admit(plugin)
        began = time.perf_counter()
        try:
            yield
        except OctavoError as error:
            if request:
                raise
            self._record(plugin, call, error, request=False)
            if is_framework_error(error):
                raise
            raise PluginError(f"plugin {plugin!r} failed in {call}: {one_line(error)}") from error
        except FAILURES as error:
            self._record(plugin, call, error, request=request)
            raise PluginError(f"plugin {plugin!r} failed in {call}: {one_line(error)}") from error
        finally:
            seconds = time.perf_counter() - began
            with self._lock:
                use = self._uses[plugin]
                use.calls += 1
                use.seconds += seconds
        if on_trial:
            with self._lock:
                self._quarantines.pop(plugin, None)

    def failure(self, plugin: str, call: str, error: BaseException) -> PluginError:
        """Count what a call on a request's data raised or gave; returns the error that names it."""
        self._record(plugin, call, error, request=True)
        made = PluginError(f"plugin {plugin!r} failed in {call}: {one_line(error)}")
        made.__cause__ = error
        return made

    def _admit(self, plugin: str) -> bool:
        """Return whether this call is the trial that ends a quarantine; raise if it is refused."""
        with self._lock:
            quarantine = self._quarantines.get(plugin)
            if quarantine is None or not self._pauses:
                return False
            now = self._clock()
            if now < quarantine.until:
                raise PluginQuarantinedError(
                    f"plugin {plugin!r} is paused for another {quarantine.until - now:.0f} s "
                    f"since it failed: {quarantine.cause}"
                )
            quarantine.until = now + QUARANTINE_SECONDS  # one trial at a time
            return True

    def _record(self, plugin: str, call: str, error: BaseException, *, request: bool) -> None:
        cause = f"{call}: {one_line(error)}"
        with self._lock:
            self._counts[plugin, call] += 1
            self._uses[plugin].failures += 1
            count = self._counts[plugin, call]
            quarantined = self._pauses and not request and plugin not in self._protected
            if quarantined:
                until = self._clock() + QUARANTINE_SECONDS
                self._quarantines[plugin] = _Quarantine(until, cause)
        self._announce(
            PluginFailure(
                plugin=plugin,
                call=call,
                error=one_line(error),
                count=count,
                quarantined=quarantined,
            )
        )


class PluginQuarantinedError(PluginError):
    """A call refused because its plugin failed a moment ago; the message says how long."""
