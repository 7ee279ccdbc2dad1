"""Tells who holds an event loop, on which all others wait."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from octavo_registry import PluginHost

log = logging.getLogger(__name__)

HELD_SECONDS: Final = 1.0
"""What is shorter is not told."""
LOOK_SECONDS: Final = 0.5
_CALLS: Final = {
    "octavo_registry.hooks.guarded": "hook",
    "octavo.server.app": "call",
    "octavo.server.http.plugin_loops": "call",
}
"""Modules that call plugins, and their variable that says which hook or route it is."""


class LoopWatch:
    """Asks a loop for a sign of life twice a second, from a thread that ends with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: PluginHost, name: str) -> None:
        self._loop = loop
        self._host = host
        self._name = name
        self._thread_id = 0
        threading.Thread(target=self._run, name=f"watches {name}", daemon=True).start()

    def _run(self) -> None:
        while True:
            sign = threading.Event()
            asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._live, sign)
            except RuntimeError:  # it is closed
                return
            if not sign.wait(HELD_SECONDS):
                self._tell(sign, asked)
            time.sleep(LOOK_SECONDS)

    def _live(self, sign: threading.Event) -> None:
        self._thread_id = threading.get_ident()
        sign.set()

    def _tell(self, sign: threading.Event, asked: float) -> None:
        frame = sys._current_frames().get(self._thread_id)
        holder = "" if frame is None else self._holder(frame)
        if holder:
            log.warning("%s is held by %s: all on it wait", self._name, holder)
        while not sign.wait(LOOK_SECONDS):
            if self._loop.is_closed():
                return
        if holder:
            log.warning("%s goes on, after %.1f s", self._name, time.monotonic() - asked)

    def _holder(self, innermost: FrameType) -> str:
        """The plugin that runs there; empty: none does, as on a machine that is too busy."""
        frames = list(_outwards(innermost))
        for number, frame in enumerate(frames):
            plugin = self._plugin_of(frame)
            if plugin is not None:
                calls = [call for each in frames[number:] if (call := _call(each))]
                within = f" in {calls[0]}" if calls else ""
                return f"plugin {plugin!r}{within} ({_place(frame)})"
        return ""

    def _plugin_of(self, frame: FrameType) -> str | None:
        module = str(frame.f_globals.get("__name__", ""))
        for record in self._host.plugins:
            known = record.module
            if known and (module == known or module.startswith(f"{known}.")):
                return record.name
        return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _call(frame: FrameType) -> str | None:
    variable = _CALLS.get(str(frame.f_globals.get("__name__", "")))
    value = frame.f_locals.get(variable) if variable else None
    return value if isinstance(value, str) else None


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno}, {code.co_qualname}"
