"""Constraints of strangers are compiled first in a child that may die of it.

A grammar of a few characters can take minutes or gigabytes. So what was not seen before is compiled
under limits in a process of its own; only what passes goes to an engine. A tenth of a second is
enough for most, and all have that first, so that none waits long behind others that take more.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from octavo.errors import (
    BadRequestError,
    QueueFullError,
    RequestFailedError,
    UnsupportedConstraint,
    error_class,
)
from octavo.guided.child_pool import ChildPool
from octavo.guided.choose import AUTO, asked_guide
from octavo.guided.process import HEADROOM_SECONDS, ChildProcess
from octavo.guided.vocabulary import longest_tokens
from octavo.messages import AskedGuide, GuideRequest
from octavo.params import GuidedParams
from octavo_registry.guided import GuideVocabulary
from octavo_registry.manifest import Manifest

CPU_SECONDS: Final = 2
WALL_SECONDS: Final = 6.0
"""Most time for one constraint, on a machine that has other things to do as well."""
MEMORY_MIB: Final = 512
FIRST_CPU_SECONDS: Final = 0.1
"""Most constraints take a tenth of that; what takes more is begun anew where it delays few."""
FIRST_WALL_SECONDS: Final = 2.0
START_SECONDS: Final = 60.0
MOST_CHILDREN: Final = 4
"""And one for constraints that take long."""
MOST_WAITING: Final = 256
"""Different ones."""
WAIT_SECONDS: Final = 30.0
"""For a place to compile."""
LONG_WAIT_SECONDS: Final = 10.0
"""For the place of those that take long."""
MOST_CHARS_REMEMBERED: Final = 2**24
"""Most characters of constraints whose outcome is kept, with their automata."""
ENTRY_CHARS: Final = 2**10
"""What remembering one takes beside its text."""
CHILD: Final = "octavo.guided.child"
_Outcome = TypeVar("_Outcome")


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


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a child, and what it may cost."""

    asked: AskedGuide
    cpu_seconds: float
    seconds: float
    on_device: bool
    """Whether it may become an automaton by itself."""
    is_long: bool = False
    """It comes after what else the machine has to do."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A child's answer: what to ask an engine for, or what is wrong with the constraint."""

    guide: GuideRequest | None = None
    loads: str = ""
    """The backend that it loads when it is asked again; it says when it has."""
    died: int | None = None
    """The exit status of what compiled it, for nothing has come of it."""
    by_core: bool = False
    """It had used up its time of a core."""
    by_clock: bool = False
    error: str = ""
    error_type: str = UnsupportedConstraint.__name__


@dataclass(slots=True)
class _Work:
    """On one constraint; given up when nobody waits for it any more."""

    first: Future[Checked | None]
    """None: it takes longer."""
    long: Future[Checked] | None = None
    num_waiters: int = 0

    def give_up(self) -> None:
        """Unless it has begun."""
        for future in (self.first, self.long):
            if future is not None:
                future.cancel()


class GuideChecker:
    """Checks constraints for one front end; may be used by several threads at a time."""

    def __init__(
        self,
        manifest: Manifest,
        vocabulary: Callable[[], GuideVocabulary],
        *,
        on_device: bool = False,
    ) -> None:
        self._on_device = on_device
        self._lock = threading.Lock()
        num_children = min(MOST_CHILDREN, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(num_children, "octavo-constraints")
        self._long = ThreadPoolExecutor(1, "octavo-long-constraints")
        self._under_way: dict[AskedGuide, _Work] = {}
        self._known: OrderedDict[AskedGuide, Checked] = OrderedDict()
        self._num_chars = 0
        # A pool that knew this object would keep it, and itself, from being collected.
        self._pool = ChildPool(CHILD, _Starter(manifest, vocabulary))

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
        for threads in (self._threads, self._long):
            threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()

    def _outcome(self, asked: AskedGuide) -> Checked:
        with self._lock:
            if asked in self._known:
                self._known.move_to_end(asked)
                return self._known[asked]
            work = self._under_way.get(asked)  # somebody else's, of the same constraint
            if work is None:
                if len(self._under_way) >= MOST_WAITING:
                    raise QueueFullError("too many constraints wait to be compiled; try later")
                work = _Work(_submitted(self._threads, self._compile_first, asked))
                self._under_way[asked] = work
            work.num_waiters += 1
        try:
            return self._result(work, asked)
        except CancelledError:
            raise RequestFailedError("the engine is closed") from None
        finally:
            with self._lock:
                work.num_waiters -= 1
                if not work.num_waiters:
                    work.give_up()
                    del self._under_way[asked]

    def _result(self, work: _Work, asked: AskedGuide) -> Checked:
        """What has been begun is waited for to its end."""
        wait([work.first], WAIT_SECONDS)
        if not (work.first.running() or work.first.done()):
            raise QueueFullError(
                f"no place to compile the constraint within {WAIT_SECONDS:.0f} s; try later"
            )
        checked = work.first.result()
        if checked is not None:
            return checked
        with self._lock:
            if work.long is None:
                work.long = _submitted(self._long, self._compile_long, asked)
            long = work.long
        wait([long], LONG_WAIT_SECONDS)
        if long.running() or long.done():
            return long.result()
        return Checked(
            error=f"the {asked.name} constraint is too large to compile while others like it wait: "
            f"a first try of {FIRST_CPU_SECONDS} s of one core was not enough"
        )

    def _compile_first(self, asked: AskedGuide) -> Checked | None:
        first = Try(
            asked=asked,
            cpu_seconds=FIRST_CPU_SECONDS,
            seconds=FIRST_WALL_SECONDS,
            on_device=self._on_device,
        )
        checked = self._compile(first)
        if checked.by_core or checked.by_clock:
            return None
        return self._concluded(first, checked)

    def _compile_long(self, asked: AskedGuide) -> Checked:
        last = Try(
            asked=asked,
            cpu_seconds=CPU_SECONDS,
            seconds=WALL_SECONDS,
            on_device=self._on_device,
            is_long=True,
        )
        checked = self._compile(last)
        by_name = asked.backend not in (None, AUTO)
        if checked.died is not None and self._on_device and not by_name:
            # As an automaton, most likely; the next backend has its own time.
            last = msgspec.structs.replace(last, on_device=False)
            checked = self._compile(last)
        return self._concluded(last, checked)

    def _concluded(self, tried: Try, checked: Checked) -> Checked:
        """What to say of it; it is remembered where it will always be so."""
        is_final = checked.died is None or checked.by_core
        if checked.died is not None:
            checked = Checked(error=_cause(tried, checked))
        if is_final:
            self._remember(tried.asked, checked)
        return checked

    def _compile(self, tried: Try) -> Checked:
        with self._pool.child() as child:
            return _compile(child, tried)

    def _remember(self, asked: AskedGuide, checked: Checked) -> None:
        with self._lock:
            if asked in self._known:
                return
            self._known[asked] = checked
            self._num_chars += _size(asked, checked)
            while self._num_chars > MOST_CHARS_REMEMBERED:
                self._num_chars -= _size(*self._known.popitem(last=False))


class _Starter:
    """Tells children what their backends are made of; the vocabulary is read for the first."""

    def __init__(self, manifest: Manifest, vocabulary: Callable[[], GuideVocabulary]) -> None:
        self._manifest = manifest
        self._read_vocabulary = vocabulary
        self._lock = threading.Lock()
        self._start: bytes | None = None

    def __call__(self, child: ChildProcess) -> None:
        with self._lock:
            if self._start is None:
                start = StartChild.of(self._manifest, self._read_vocabulary())
                self._start = msgspec.msgpack.encode(start)
        _begin(child, self._start)


def _submitted(
    threads: ThreadPoolExecutor, work: Callable[[AskedGuide], _Outcome], asked: AskedGuide
) -> Future[_Outcome]:
    try:
        return threads.submit(work, asked)
    except RuntimeError:  # they have been shut down
        raise RequestFailedError("the engine is closed") from None


def _size(asked: AskedGuide, checked: Checked) -> int:
    return (
        ENTRY_CHARS
        + len(asked.value)
        + (0 if checked.guide is None else len(checked.guide.automaton))
    )


def _begin(child: ChildProcess, start: bytes) -> None:
    """Wait until it is ready; raises if it never is, which is no request's fault."""
    data = child.ask(start, START_SECONDS)
    cause = "it ended" if data is None else msgspec.msgpack.decode(data, type=Checked).error
    if cause:
        child.kill()
        raise RequestFailedError(f"the process that compiles constraints has failed: {cause}")


def _compile(child: ChildProcess, tried: Try) -> Checked:
    question = msgspec.msgpack.encode(tried)
    most = tried.seconds + HEADROOM_SECONDS  # the child itself sees to the time
    checked = _answer(child, question, most)
    if checked.loads:
        _begin(child, question)
        checked = _answer(child, question, most)
    return checked


def _answer(child: ChildProcess, question: bytes, seconds: float) -> Checked:
    data = child.ask(question, seconds)
    if data is not None:
        return msgspec.msgpack.decode(data, type=Checked)
    child.kill()
    return Checked(died=child.exit_status, by_clock=child.was_late)


def _cause(tried: Try, checked: Checked) -> str:
    limits = f"(limits: {CPU_SECONDS} s of one core, {WALL_SECONDS:.0f} s, {MEMORY_MIB} MiB)"
    if checked.by_core or checked.by_clock:
        what = "is too large to compile: it was given up"
    else:  # as where memory does not suffice, which each library says in its own way
        what = f"could not be compiled: its process ended with status {checked.died}"
    return f"the {tried.asked.name} constraint {what} {limits}"
