"""Constraints of strangers are compiled first in a child that may die of it.

A grammar of a few characters can take minutes or gigabytes. So what was not seen before is compiled
under limits in a process of its own; only what passes goes to an engine.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import IO, Final

import msgspec

from octavo.engine.messages import AskedGuide, GuideRequest
from octavo.errors import BadRequestError, QueueFullError, UnsupportedConstraint, error_class
from octavo.guided.choose import asked_guide
from octavo.params import GuidedParams
from octavo_registry.guided import GuideVocabulary
from octavo_registry.manifest import Manifest

CPU_SECONDS: Final = 2
WALL_SECONDS: Final = 6.0
"""Of one constraint, on a machine that has other things to do as well."""
MEMORY_MIB: Final = 512
START_SECONDS: Final = 60.0
QUEUE_SECONDS: Final = 10.0
"""So long a constraint waits for a child."""
MOST_CHILDREN: Final = 4
MOST_REMEMBERED: Final = 4096
COMMAND: Final = (sys.executable, "-P", "-m", "octavo.guided.child")
LENGTH: Final = Struct(">I")


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
        self._places = threading.BoundedSemaphore(min(MOST_CHILDREN, os.cpu_count() or 1))
        self._idle: list[_Child] = []
        self._known: OrderedDict[AskedGuide, Checked] = OrderedDict()
        # Also at garbage collection and at the interpreter's exit.
        self._close = weakref.finalize(self, _kill_all, self._idle)

    def check(self, params: GuidedParams) -> GuideRequest:
        """Choose a backend that compiles the constraint within the limits; raise if none does."""
        asked = asked_guide(params)
        checked = self._known.get(asked)
        if checked is None:
            checked = self._compile(asked)
            with self._lock:
                self._known[asked] = checked
                if len(self._known) > MOST_REMEMBERED:
                    self._known.popitem(last=False)
        if checked.guide is None:
            kind = error_class(checked.error_type)
            if not issubclass(kind, BadRequestError):
                kind = UnsupportedConstraint
            raise kind(checked.error, param=params.origin)
        return checked.guide

    def close(self) -> None:
        """End the children; calling it again does nothing."""
        self._close()

    def _compile(self, asked: AskedGuide) -> Checked:
        if not self._places.acquire(timeout=QUEUE_SECONDS):
            raise QueueFullError("too many constraints wait to be compiled; try again later")
        try:
            child = self._take_child()
            try:
                checked = child.compile(asked)
            except BaseException:
                child.kill()
                raise
            if child.alive:
                with self._lock:
                    self._idle.append(child)
            return checked
        finally:
            self._places.release()

    def _take_child(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
            if self._start is None:
                self._start = self._start_message()
        return _Child(self._start)

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

    def __init__(self, start: bytes) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            self._send(start)
            if self._receive(START_SECONDS) is None:
                raise UnsupportedConstraint(
                    "the process that compiles constraints does not start", param="guided"
                )
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def compile(self, asked: AskedGuide) -> Checked:
        began = time.monotonic()
        try:
            self._send(msgspec.msgpack.encode(asked))
            data = self._receive(WALL_SECONDS)
        except OSError:
            data = None
        if data is not None:
            return msgspec.msgpack.decode(data, type=Checked)
        took = time.monotonic() - began
        self.kill()
        return Checked(
            error=f"the {asked.name} constraint is too large to compile: it was given up after "
            f"{took:.1f} s (limits: {CPU_SECONDS} s of one core, {MEMORY_MIB} MiB)"
        )

    def kill(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _send(self, data: bytes) -> None:
        pipe = _opened(self._process.stdin)
        pipe.write(LENGTH.pack(len(data)) + data)
        pipe.flush()

    def _receive(self, seconds: float) -> bytes | None:
        """The next answer; None when time is up or the process has ended."""
        pipe = _opened(self._process.stdout)
        if not select.select([pipe], [], [], seconds)[0]:
            return None
        head = pipe.read(LENGTH.size)
        return pipe.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _kill_all(children: list[_Child]) -> None:
    for child in children:
        child.kill()


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("no pipe was asked for")
    return pipe
