"""Constraints of strangers are compiled first in a child that may die of it.

A grammar of a few characters can take minutes or gigabytes. So what was not seen before is compiled
under limits in a process of its own; only what passes goes to an engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from struct import Struct
from typing import IO, Final

import msgspec

from octavo.engine.messages import AskedGuide, GuideRequest
from octavo.errors import (
    BadRequestError,
    QueueFullError,
    RequestFailedError,
    UnsupportedConstraint,
    error_class,
)
from octavo.guided.choose import asked_guide
from octavo.params import GuidedParams
from octavo_registry.guided import GuideVocabulary
from octavo_registry.manifest import Manifest

CPU_SECONDS: Final = 2
WALL_SECONDS: Final = 6.0
"""Of one constraint, on a machine that has other things to do as well."""
MEMORY_MIB: Final = 512
START_SECONDS: Final = 60.0
MOST_CHILDREN: Final = 4
MOST_WAITING: Final = 64
MOST_CHARS_REMEMBERED: Final = 2**24
"""Of constraints whose outcome is known."""
COMMAND: Final = (sys.executable, "-P", "-m", "octavo.guided.child")
_LENGTH: Final = Struct(">I")


class StartChild(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a child."""

    manifest: Manifest
    token_bytes: list[bytes | None]
    special_ids: dict[str, int]
    stop_token_ids: tuple[int, ...]
    vocab_size: int


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A child's answer: what to ask an engine for, or what is wrong with the constraint."""

    guide: GuideRequest | None = None
    error: str = ""
    error_type: str = UnsupportedConstraint.__name__


class GuideChecker:
    """Checks constraints for one front end; may be used by several threads at a time."""

    def __init__(self, manifest: Manifest, vocabulary: Callable[[], GuideVocabulary]) -> None:
        self._manifest = manifest
        self._read_vocabulary = vocabulary
        self._lock = threading.Lock()
        self._start: bytes | None = None
        num_children = min(MOST_CHILDREN, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(num_children, "octavo-constraints")
        self._under_way: dict[AskedGuide, Future[Checked]] = {}
        self._known: OrderedDict[AskedGuide, Checked] = OrderedDict()
        self._num_chars = 0
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._is_closed = False
        # Also at garbage collection and at the interpreter's exit.
        self._close = weakref.finalize(self, _kill_all, self._children)

    def check(self, params: GuidedParams) -> GuideRequest:
        """Choose a backend that compiles the constraint within the limits; raise if none does."""
        checked = self._outcome(asked_guide(params))
        if checked.guide is None:
            kind = error_class(checked.error_type)
            if not issubclass(kind, BadRequestError):
                kind = UnsupportedConstraint
            raise kind(checked.error, param=params.origin)
        return checked.guide

    def close(self) -> None:
        """End the children; calling it again does nothing."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._close()

    def _outcome(self, asked: AskedGuide) -> Checked:
        with self._lock:
            if asked in self._known:
                self._known.move_to_end(asked)
                return self._known[asked]
            future = self._under_way.get(asked)  # somebody else's, of the same constraint
            if future is None:
                if len(self._under_way) >= MOST_WAITING:
                    raise QueueFullError("too many constraints wait to be compiled; try later")
                future = self._threads.submit(self._compile, asked)
                self._under_way[asked] = future
        try:
            return future.result()
        finally:
            with self._lock:
                self._under_way.pop(asked, None)

    def _compile(self, asked: AskedGuide) -> Checked:
        child = self._take_child()
        try:
            checked, is_final = child.compile(asked)
        finally:
            with self._lock:
                if child.alive and not self._is_closed:
                    self._idle.append(child)
                else:
                    self._children.discard(child)
                    child.kill()
        if is_final:
            self._remember(asked, checked)
        return checked

    def _remember(self, asked: AskedGuide, checked: Checked) -> None:
        with self._lock:
            self._known[asked] = checked
            self._num_chars += len(asked.value)
            while self._num_chars > MOST_CHARS_REMEMBERED:
                oldest, _ = self._known.popitem(last=False)
                self._num_chars -= len(oldest.value)

    def _take_child(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                self._children.discard(child)
            if self._start is None:
                self._start = self._start_message()
            if self._is_closed:
                raise RequestFailedError("the engine is closed")
            child = _Child()
            self._children.add(child)
        child.begin(self._start)
        return child

    def _start_message(self) -> bytes:
        vocabulary = self._read_vocabulary()
        return msgspec.msgpack.encode(
            StartChild(
                manifest=self._manifest,
                token_bytes=list(vocabulary.token_bytes),
                special_ids=dict(vocabulary.special_ids),
                stop_token_ids=vocabulary.stop_token_ids,
                vocab_size=vocabulary.vocab_size,
            )
        )


class _Child:
    """One process, which compiles one constraint after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )

    def begin(self, start: bytes) -> None:
        """Wait until it is ready; raises if it never is, which is no request's fault."""
        data = self._ask(start, START_SECONDS)
        cause = "it ended" if data is None else msgspec.msgpack.decode(data, type=Checked).error
        if cause:
            self.kill()
            raise RequestFailedError(f"the process that compiles constraints has failed: {cause}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, asked: AskedGuide) -> tuple[Checked, bool]:
        """What became of it, and whether that will always be so."""
        began = time.monotonic()
        data = self._ask(msgspec.msgpack.encode(asked), WALL_SECONDS)
        if data is not None:
            return msgspec.msgpack.decode(data, type=Checked), True
        took = time.monotonic() - began
        self.kill()
        by_its_limit = self._process.returncode == -signal.SIGXCPU
        error = (
            f"the {asked.name} constraint is too large to compile: it was given up after "
            f"{took:.1f} s (limits: {CPU_SECONDS} s of one core, {MEMORY_MIB} MiB)"
        )
        return Checked(error=error), by_its_limit

    def kill(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _ask(self, data: bytes, seconds: float) -> bytes | None:
        """Its answer; None when it has ended, or was ended because time was up."""
        sent, received = _opened(self._process.stdin), _opened(self._process.stdout)
        deadline = threading.Timer(seconds, self._process.kill)
        deadline.start()
        try:
            write_frame(sent, data)
            return read_frame(received) or None
        except OSError:
            return None
        finally:
            deadline.cancel()


def _kill_all(children: set[_Child]) -> None:
    for child in list(children):
        child.kill()


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Send one message."""
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """The next message; empty when the other side has ended, also in the middle of one."""
    head = pipe.read(_LENGTH.size)
    length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
    data = pipe.read(length)
    return data if len(data) == length else b""


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("no pipe was asked for")
    return pipe
