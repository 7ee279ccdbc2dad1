"""The engine process: answers its clients over sockets until the first tells it to end.

Messages are taken between steps; without work the process sleeps on its sockets.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import zmq

from octavo.config import EngineConfig
from octavo.engine.client import Engine, cause_of
from octavo.errors import OctavoError
from octavo.messages import (
    AbortSequences,
    AddAdapter,
    AddRequests,
    CallUtility,
    ClientMessage,
    EngineFailed,
    EngineMessage,
    PackedAdapter,
    RemoveAdapter,
    ReplaceWorker,
    Shutdown,
    StartEngine,
    StepOutputs,
    UtilityResult,
)
from octavo.observability.logs import follow_level
from octavo.pooled_calls import PooledCall
from octavo_registry.manifest import Manifest

log = logging.getLogger(__name__)

CoreFactory = Callable[[EngineConfig, Manifest], Engine]
# Time that the last message gets to leave when the process ends.
LINGER_MILLISECONDS: Final = 1000
# An engine without work looks so often whether its workers are still there.
IDLE_MILLISECONDS: Final = 1000
# Steps that give nothing, as those of a long prompt's beginning, tell of themselves so often.
PROGRESS_SECONDS: Final = 1.0


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
        clients = _Clients(context, link)
        try:
            start = msgspec.msgpack.decode(socket.recv(), type=StartEngine)
            follow_level(start.log_level)
            core = load(start.config, start.manifest)
            clients.add_workers(start.worker_addresses)
            # What is loaded stays: a collection that looks at it all stops a step for 0.2 s.
            gc.freeze()
        except Exception as error:
            if not isinstance(error, OctavoError):
                log.exception("the engine cannot start")
            link.send(EngineFailed(cause_of(error), type(error).__name__))
            return 1
        try:
            link.send(core.ready)
            _run(core, clients)
        except Exception as error:
            log.exception("the engine's step failed")
            link.send(EngineFailed(f"the engine failed: {cause_of(error)}"))
            return 1
        finally:
            core.close()
            clients.close()
            gc.unfreeze()  # what stays frozen at exit, extension modules report as leaks
    return 0


class _Link:
    """Messages both ways."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.sequences: set[int] = set()
        """Sequences and calls that were asked for here and have not ended."""
        self.adapters: list[str] = []
        """Added here and not removed, by content hash; one may be there several times."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ClientMessage)
        self._told_seconds = 0.0

    def send(self, message: EngineMessage) -> None:
        self.socket.send(self._encoder.encode(message))

    def send_step(self, outputs: StepOutputs) -> None:
        """Send what there is; without anything, a sign of progress now and then."""
        self.sequences.difference_update(end.sequence for end in outputs.ends)
        self.sequences.difference_update(rows.call for rows in outputs.pooled if rows.is_last)
        now = time.monotonic()
        has_news = outputs.sequences or outputs.ends or outputs.preempted or outputs.pooled
        if has_news or now - self._told_seconds > PROGRESS_SECONDS:
            self.send(outputs)
            self._told_seconds = now

    def receive_data(self) -> memoryview:
        """The frame behind the message, which has come with it."""
        return self.socket.recv(copy=False).buffer

    def receive(self) -> ClientMessage | None:
        """None where none waits."""
        try:
            data = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        message: ClientMessage = self._decoder.decode(data)
        return message


class _Clients:
    """The process that has started this one and, where it has some, its HTTP workers."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], parent: _Link) -> None:
        self._context = context
        self._parent = parent
        self._workers: list[_Link] = []
        self._poller = zmq.Poller()
        self._poller.register(parent.socket, zmq.POLLIN)

    def add_workers(self, addresses: tuple[str, ...]) -> None:
        self._workers += [self._connected(address) for address in addresses]

    def replace_worker(self, place: int, address: str) -> _Link:
        """Connect to another in a lost one's place; returns that one."""
        lost = self._workers[place]
        self._poller.unregister(lost.socket)
        lost.socket.close()
        self._workers[place] = self._connected(address)
        return lost

    def _connected(self, address: str) -> _Link:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.set_hwm(0)
        socket.connect(address)
        self._poller.register(socket, zmq.POLLIN)
        return _Link(socket)

    def receive(self, *, block: bool) -> tuple[ClientMessage, _Link] | None:
        if block:
            self._poller.poll(IDLE_MILLISECONDS)
        for link in (self._parent, *self._workers):
            message = link.receive()
            if message is not None:
                return message, link
        return None

    def send(self, outputs: StepOutputs) -> None:
        """To each its own: one whose requests all wait while others' run hears of progress too."""
        if not self._workers:
            self._parent.send_step(outputs)
            return
        parts = split_outputs(outputs, len(self._workers))
        for link, part in zip(self._workers, parts, strict=True):
            link.send_step(part)

    def close(self) -> None:
        for link in self._workers:
            link.socket.close()


def split_outputs(outputs: StepOutputs, num_parts: int) -> list[StepOutputs]:
    """Sort a step's outputs by the remainders of their sequences and calls."""
    parts = [
        msgspec.structs.replace(
            outputs,
            **{"sequences": [], "tokens": [], "counts": [], "logprobs": {}},
            **{"ends": [], "prompts": [], "preempted": [], "pooled": []},
        )
        for _ in range(num_parts)
    ]
    for sequence, tokens in outputs.by_sequence():
        parts[sequence % num_parts].add(sequence, tokens)
    for sequence, logprobs in outputs.logprobs.items():
        parts[sequence % num_parts].logprobs[sequence] = logprobs
    for end in outputs.ends:
        parts[end.sequence % num_parts].ends.append(end)
    for prompt in outputs.prompts:
        parts[prompt.sequence % num_parts].prompts.append(prompt)
    for sequence in outputs.preempted:
        parts[sequence % num_parts].preempted.append(sequence)
    for rows in outputs.pooled:
        parts[rows.call % num_parts].pooled.append(rows)
    return parts


def _run(core: Engine, clients: _Clients) -> None:
    while True:
        while received := _next_message(core, clients):
            message, link = received
            if isinstance(message, Shutdown):
                return
            _apply(message, core, clients, link)
        clients.send(core.step())


def _next_message(core: Engine, clients: _Clients) -> tuple[ClientMessage, _Link] | None:
    """None where there is none and a step to run; without work, waits and uses the time."""
    received = clients.receive(block=False)
    while received is None and not core.has_work:
        received = clients.receive(block=not core.use_idle_time())
    return received


def _apply(message: ClientMessage, core: Engine, clients: _Clients, link: _Link) -> None:
    match message:
        case AddRequests(requests):
            link.sequences.update(s for request in requests for s in request.sequences)
            core.add(requests)
        case PooledCall():
            link.sequences.add(message.call)
            core.add_call(message)
        case AbortSequences(sequences):
            link.sequences.difference_update(sequences)
            core.abort(sequences)
        case AddAdapter(head):
            core.add_adapter(PackedAdapter(head, link.receive_data()))
            link.adapters.append(head.content_hash)
        case RemoveAdapter(content_hash):
            if content_hash in link.adapters:
                link.adapters.remove(content_hash)
                core.remove_adapter(content_hash)
        case ReplaceWorker(place, address):
            lost = clients.replace_worker(place, address)
            core.abort(list(lost.sequences))
            for content_hash in lost.adapters:
                core.remove_adapter(content_hash)
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
