"""The engine process: answers one client over a socket until it is told to end.

Messages are taken between steps; without work the process sleeps on its socket.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import zmq

from octavo.config import EngineConfig
from octavo.engine.client import Engine, cause_of
from octavo.engine.messages import (
    AbortSequences,
    AddRequests,
    CallUtility,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    Shutdown,
    StartEngine,
    UtilityResult,
)
from octavo.errors import OctavoError
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

CoreFactory = Callable[[EngineConfig, Manifest], Engine]
# Time that the last message gets to leave when the process ends.
LINGER_MILLISECONDS: Final = 1000


def load_core(config: EngineConfig, manifest: Manifest) -> Engine:
    """Make the engine of this config with exactly the plugins of the client's process."""
    from octavo.engine.core import EngineCore  # imports torch: only where it is needed
    from octavo_registry.host import PluginHost

    return EngineCore(config, PluginHost.from_manifest(manifest))


def serve(address: str, load: CoreFactory = load_core) -> int:
    """Run an engine for the client at ``address``; returns the process's exit status."""
    _end_with_parent(address)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, LINGER_MILLISECONDS)
        socket.set_hwm(0)
        socket.connect(address)
        link = _Link(socket)
        try:
            start = msgspec.msgpack.decode(socket.recv(), type=StartEngine)
            logging.getLogger().setLevel(start.log_level)
            core = load(start.config, start.manifest)
        except Exception as error:
            if not isinstance(error, OctavoError):
                log.exception("the engine cannot start")
            link.send(EngineFailed(cause_of(error), type(error).__name__))
            return 1
        try:
            link.send(core.ready)
            _run(core, link)
        except Exception as error:
            log.exception("the engine's step failed")
            link.send(EngineFailed(f"the engine failed: {cause_of(error)}"))
            return 1
        finally:
            core.close()
    return 0


class _Link:
    """Messages both ways."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ClientMessage)

    def send(self, message: EngineMessage) -> None:
        self._socket.send(self._encoder.encode(message))

    def receive(self, *, block: bool) -> ClientMessage | None:
        try:
            data = self._socket.recv(0 if block else zmq.NOBLOCK)
        except zmq.Again:
            return None
        message: ClientMessage = self._decoder.decode(data)
        return message


def _run(core: Engine, link: _Link) -> None:
    while True:
        while message := _next_message(core, link):
            if isinstance(message, Shutdown):
                return
            _apply(message, core, link)
        outputs = core.step()
        if outputs.sequences or outputs.ends or outputs.preempted:
            link.send(outputs)


def _next_message(core: Engine, link: _Link) -> ClientMessage | None:
    """None where there is none and a step to run; without work, waits and uses the time."""
    message = link.receive(block=False)
    while message is None and not core.has_work:
        message = link.receive(block=not core.use_idle_time())
    return message


def _apply(message: ClientMessage, core: Engine, link: _Link) -> None:
    match message:
        case AddRequests(requests):
            core.add(requests)
        case AbortSequences(sequences):
            core.abort(sequences)
        case CallUtility(call_id, method):
            try:
                link.send(UtilityResult(call_id, core.call(method)))
            except Exception as error:
                link.send(UtilityResult(call_id, error=cause_of(error)))


def _end_with_parent(address: str) -> None:
    """End this process when standard input ends, which the parent holds open as long as it lives.

    At once and without clean-up, save for the socket that the parent made: nobody is left to
    serve, and a step may be stuck in a kernel.
    """

    def watch() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would be held at the interpreter's exit
            pass
        path = Path(address.removeprefix("ipc://"))
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
