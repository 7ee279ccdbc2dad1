"""Routes of strangers' plugins, on event loops where what they block is their own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.server.http.body import Receive
from octavo.server.http.exchange import Send
from octavo.server.processes.loop_watch import LoopWatch
from octavo_registry import PluginHost
from octavo_registry.faults import one_line
from octavo_registry.routes import AsgiApp, Message

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class PluginLoop:
    """One plugin's event loop, in a thread that begins with the first request."""

    def __init__(self, plugin: str, host: PluginHost) -> None:
        self._plugin = plugin
        self._host = host
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(
        self, app: AsgiApp, scope: Message, receive: Receive, send: Send, call: str
    ) -> None:
        """Answer one request there; ``receive`` and ``send`` stay on the caller's loop.

        ``call`` is what logs call it.

        Cancelling this cancels the app wherever it waits; one that does not wait goes on alone.
        """
        here = asyncio.get_running_loop()

        async def over(call: Callable[[], Awaitable[_Result]]) -> _Result:
            async def made() -> _Result:
                return await call()

            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made(), here))

        async def answered(call: str) -> None:
            await app(scope, lambda: over(receive), lambda message: over(lambda: send(message)))

        future = asyncio.run_coroutine_threadsafe(answered(call), self._started())
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            raise RuntimeError("it was cancelled by something of its own") from None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = f"routes of {self._plugin}"
                threading.Thread(
                    target=_run, args=(self._loop, name), name=name, daemon=True
                ).start()
                LoopWatch(self._loop, self._host, f"the event loop of plugin {self._plugin!r}")
            return self._loop


def _run(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Run it for good: what one request does to it, as ``sys.exit()``, must not hang the others."""
    while True:
        try:
            loop.run_forever()
            log.warning("the event loop for %s was stopped by the plugin; it goes on", name)
        except SystemExit as error:  # the request has it, too
            log.warning("the event loop for %s goes on after %s", name, one_line(error))
