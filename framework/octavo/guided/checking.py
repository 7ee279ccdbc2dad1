"""Constraints of strangers are compiled first in a child that may die of it.

A grammar of a few characters can take minutes or gigabytes. So what was not seen before is compiled
under limits in a process of its own; only what passes goes to an engine.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

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
from octavo.guided.process import ChildProcess
from octavo.guided.vocabulary import longest_tokens
from octavo.params import GuidedParams
from octavo_registry.guided import GuideVocabulary
from octavo_registry.manifest import Manifest

CPU_SECONDS: Final = 2
WALL_SECONDS: Final = 6.0
"""Of one constraint, on a machine that has other things to do as well."""
MEMORY_MIB: Final = 512
START_SECONDS: Final = 60.0
MOST_CHILDREN: Final = 4
MOST_WAITING: Final = 128
"""Different ones."""
WAIT_SECONDS: Final = 30.0
"""For a place to compile."""
MOST_CHARS_REMEMBERED: Final = 2**24
"""Of constraints whose outcome is known."""
CHILD: Final = "octavo.guided.child"


class StartChild(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a child: what its backends are made of."""

    manifest: Manifest
    token_bytes: list[bytes | None]
    special_ids: dict[str, int]
    stop_token_ids: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(cls, manifest: Manifest, vocabulary: GuideVocabulary) -> StartChild:
        """Written in the parent."""
        return cls(
            manifest=manifest,
            token_bytes=list(vocabulary.token_bytes),
            special_ids=dict(vocabulary.special_ids),
            stop_token_ids=vocabulary.stop_token_ids,
            vocab_size=vocabulary.vocab_size,
        )

    def vocabulary(self) -> GuideVocabulary:
        """Read in the child, which has no tokenizer: what is forced must be some tokens."""
        return GuideVocabulary(
            token_bytes=self.token_bytes,
            special_ids=self.special_ids,
            stop_token_ids=self.stop_token_ids,
            vocab_size=self.vocab_size,
            encode=longest_tokens(self.token_bytes),
        )


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A child's answer: what to ask an engine for, or what is wrong with the constraint."""

    guide: GuideRequest | None = None
    loads: bool = False
    """It loads a backend for the first time, says so when it has, and is to be asked again."""
    error: str = ""
    error_type: str = UnsupportedConstraint.__name__


@dataclass(slots=True)
class _Work:
    """On one constraint; given up when nobody waits for it any more."""

    future: Future[Checked]
    num_waiters: int = 0


class GuideChecker:
    """Checks constraints for one front end; may be used by several threads at a time."""

    def __init__(self, manifest: Manifest, vocabulary: Callable[[], GuideVocabulary]) -> None:
        self._manifest = manifest
        self._read_vocabulary = vocabulary
        self._lock = threading.Lock()
        self._start: bytes | None = None
        num_children = min(MOST_CHILDREN, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(num_children, "octavo-constraints")
        self._under_way: dict[AskedGuide, _Work] = {}
        self._known: OrderedDict[AskedGuide, Checked] = OrderedDict()
        self._num_chars = 0
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
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
            work = self._under_way.get(asked)  # somebody else's, of the same constraint
            if work is None:
                if len(self._under_way) >= MOST_WAITING:
                    raise QueueFullError("too many constraints wait to be compiled; try later")
                work = _Work(self._threads.submit(self._compile, asked))
                self._under_way[asked] = work
            work.num_waiters += 1
        try:
            return self._result(work.future)
        finally:
            with self._lock:
                work.num_waiters -= 1
                if not work.num_waiters:
                    work.future.cancel()
                    del self._under_way[asked]

    def _result(self, future: Future[Checked]) -> Checked:
        """What has been begun is waited for to its end."""
        try:
            wait([future], WAIT_SECONDS)
            if future.running() or future.done():
                return future.result()
        except CancelledError:
            raise RequestFailedError("the engine is closed") from None
        raise QueueFullError(
            f"no place to compile the constraint within {WAIT_SECONDS:.0f} s; try later"
        )

    def _compile(self, asked: AskedGuide) -> Checked:
        child = self._take_child()
        try:
            checked, is_final = _compile(child, asked)
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
            if asked in self._known:
                return
            self._known[asked] = checked
            self._num_chars += len(asked.value)
            while self._num_chars > MOST_CHARS_REMEMBERED:
                oldest, _ = self._known.popitem(last=False)
                self._num_chars -= len(oldest.value)

    def _take_child(self) -> ChildProcess:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
                self._children.discard(child)
            if self._start is None:
                self._start = msgspec.msgpack.encode(
                    StartChild.of(self._manifest, self._read_vocabulary())
                )
            if self._is_closed:
                raise RequestFailedError("the engine is closed")
            child = ChildProcess(CHILD)
            self._children.add(child)
        _begin(child, self._start)
        return child


def _begin(child: ChildProcess, start: bytes) -> None:
    """Wait until it is ready; raises if it never is, which is no request's fault."""
    data = child.ask(start, START_SECONDS)
    cause = "it ended" if data is None else msgspec.msgpack.decode(data, type=Checked).error
    if cause:
        child.kill()
        raise RequestFailedError(f"the process that compiles constraints has failed: {cause}")


def _compile(child: ChildProcess, asked: AskedGuide) -> tuple[Checked, bool]:
    """What became of it, and whether that will always be so."""
    question = msgspec.msgpack.encode(asked)
    began = time.monotonic()
    data = child.ask(question, WALL_SECONDS)
    if data is not None and msgspec.msgpack.decode(data, type=Checked).loads:
        _begin(child, question)
        began = time.monotonic()
        data = child.ask(question, WALL_SECONDS)
    if data is not None:
        return msgspec.msgpack.decode(data, type=Checked), True
    took = time.monotonic() - began
    child.kill()
    limits = f"(limits: {CPU_SECONDS} s of one core, {MEMORY_MIB} MiB)"
    if child.was_late or child.by_its_limit:
        what = f"is too large to compile: it was given up after {took:.1f} s {limits}"
    else:  # as where memory does not suffice, which each library says in its own way
        what = f"could not be compiled: its process ended with status {child.exit_status} {limits}"
    return Checked(error=f"the {asked.name} constraint {what}"), child.by_its_limit


def _kill_all(children: set[ChildProcess]) -> None:
    for child in list(children):
        child.kill()
