"""Guides of backends that are not native: a child process fills their masks.

The engine's side of a state knows its tokens and the last mask, so that a token is accepted at
once; the child hears of it with the next mask. When a child has died, or was ended because it was
late, the sequence it worked for fails, and all its other states are made anew from their tokens.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.errors import OctavoError, RequestFailedError, UnsupportedConstraint, error_class
from octavo.guided.checking import (
    CPU_SECONDS,
    MEMORY_MIB,
    START_SECONDS,
    WALL_SECONDS,
    StartChild,
)
from octavo.guided.process import ChildProcess
from octavo_registry.guided import Constraint, ConstraintKind, GuideVocabulary
from octavo_registry.manifest import Manifest

MOST_CHILDREN: Final = 2
STATES_PER_CHILD: Final = 4
"""A further child begins with the next one: it takes seconds and memory of its own."""
MOST_IDLE_GUIDES: Final = 32
"""A child keeps so many that no state is in."""
TOKENS_PER_SECOND: Final = 100
"""A state that is made anew has a second more for so many tokens."""
CHILD: Final = "octavo.guided.mask_child"


class StartMasks(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a child."""

    backend: str
    start: StartChild


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Compile a guide, or bring a state up to date and fill its mask."""

    guide: int
    kind: ConstraintKind | None = None
    value: str = ""
    """The constraint of the guide to compile, as JSON; without a kind there is none."""
    state: int = -1
    keep: int = 0
    """So many of the tokens that the child's state has taken are the state's still."""
    tokens: list[int] = []
    seconds_more: int = 0
    gone_states: list[int] = []
    gone_guides: list[int] = []


class Mask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child's answer."""

    bits: bytes = b""
    """Where nothing is forced."""
    forced: list[int] = []
    is_complete: bool = False
    is_finished: bool = False
    error: str = ""
    error_type: str = ""


class RemoteBackend:
    """A backend in children; each compiles the guides of the states that it has."""

    def __init__(self, name: str, manifest: Manifest, vocabulary: GuideVocabulary) -> None:
        start = StartMasks(backend=name, start=StartChild.of(manifest, vocabulary))
        data = msgspec.msgpack.encode(start)
        self._ids = count()
        self._seats = [_Seat(name, data) for _ in range(min(MOST_CHILDREN, os.cpu_count() or 1))]
        self._vocab_size = vocabulary.vocab_size

    def compile(self, constraint: Constraint) -> RemoteGuide:
        """Compile in a child, within the limits that hold for strangers' constraints too."""
        guide = RemoteGuide(next(self._ids), constraint, self)
        self.seat(guide).compile(guide)
        return guide

    def seat(self, guide: RemoteGuide) -> _Seat:
        """The child with few states, of several such the one that has the guide."""
        return min(
            self._seats,
            key=lambda seat: (len(seat.states) // STATES_PER_CHILD, not seat.knows(guide)),
        )

    def state(self, guide: RemoteGuide, tokens: list[int]) -> RemoteState:
        """A new state behind these tokens."""
        return RemoteState(next(self._ids), guide, self.seat(guide), self._vocab_size, tokens)

    def close(self) -> None:
        """End the children."""
        for seat in self._seats:
            seat.close()


class RemoteGuide:
    """What children compile, each when it first needs it."""

    def __init__(self, number: int, constraint: Constraint, backend: RemoteBackend) -> None:
        self.id = number
        self.constraint = constraint
        self._backend = backend

    def start(self) -> RemoteState:
        """At once; no child hears of it yet."""
        return self.state([])

    def state(self, tokens: list[int]) -> RemoteState:
        """Behind tokens that another state has accepted."""
        return self._backend.state(self, tokens)


class RemoteState:
    """A sequence's tokens, and the answer of the child for the one that comes next.

    All methods wait for the child where they need its answer, but ``is_finished``.
    """

    def __init__(
        self, number: int, guide: RemoteGuide, seat: _Seat, vocab_size: int, tokens: list[int]
    ) -> None:
        self.id = number
        self.guide = guide
        self.tokens = tokens
        self.num_kept = 0
        """Tokens that were not taken back since the child heard of them."""
        self._seat = seat
        self._mask_W = np.zeros((vocab_size + 31) // 32, np.int32)
        self._answer: Mask | None = None
        self._ahead: list[int] = []
        """What is left to accept of tokens without a choice."""
        seat.states.add(number)
        weakref.finalize(self, seat.forget, number).atexit = False

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Run it where nothing else waits but what the state's child has to do."""
        return self._seat.threads.submit(job)

    def allowed(self, token: int) -> bool:
        """Whether the mask has it."""
        if not self._ahead:
            self._known()
        if self._ahead:
            return token == self._ahead[0]
        word, bit = divmod(token, 32)
        return 0 <= word < len(self._mask_W) and bool(int(self._mask_W[word]) >> bit & 1)

    def accept(self, token: int) -> bool:
        """Note the token."""
        if not self.allowed(token):
            return False
        self.tokens.append(token)
        self._answer = None
        self._ahead = self._ahead[1:]
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        if num_tokens:
            del self.tokens[len(self.tokens) - num_tokens :]
            self.num_kept = min(self.num_kept, len(self.tokens))
            self._answer, self._ahead = None, []

    def fork(self) -> RemoteState:
        """A state behind the same tokens, in any of the children."""
        return self.guide.state(list(self.tokens))

    def forced(self) -> list[int]:
        """The tokens without a choice."""
        return list(self._known().forced)

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Copy the mask."""
        self._known()
        row[:] = self._mask_W

    def is_complete(self) -> bool:
        """Whether the text so far satisfies the constraint."""
        return self._known().is_complete

    def is_finished(self) -> bool:
        """Whether it is known to be finished; this is told together with the next mask."""
        return self._answer is not None and self._answer.is_finished

    def _known(self) -> Mask:
        if self._answer is None:
            answer = self._seat.mask(self)
            if answer.forced:
                self._mask_W[:] = 0
                word, bit = divmod(answer.forced[0], 32)
                self._mask_W.view(np.uint32)[word] = 1 << bit
            else:
                self._mask_W[:] = np.frombuffer(answer.bits, np.int32)
            self._answer, self._ahead = answer, list(answer.forced)
        return self._answer


class _ChildEnded(Exception):
    """Before it answered."""

    def __init__(self, *, is_late: bool) -> None:
        super().__init__("it took too long" if is_late else "its process has ended")
        self.is_late = is_late


class _Seat:
    """One child at a time, what it has been told, and a thread for those who wait for it."""

    def __init__(self, backend: str, start: bytes) -> None:
        self.states: set[int] = set()
        """States that are in use here, whether the child has heard of them or not."""
        self.threads = ThreadPoolExecutor(1, f"octavo-masks-{backend}")
        self._backend = backend
        self._start = start
        self._lock = threading.Lock()
        self._is_closed = False
        self._gone: deque[int] = deque()
        self._child: ChildProcess | None = None
        self._num_answers = 0
        """Answers that this child has given."""
        self._guides: OrderedDict[int, set[int]] = OrderedDict()
        """The child's states by guide; the guide that was used last is at the end."""
        self._lengths: dict[int, int] = {}
        """How many tokens the child's states have taken."""

    def knows(self, guide: RemoteGuide) -> bool:
        """Whether the child has compiled it."""
        return guide.id in self._guides

    def forget(self, state: int) -> None:
        """A state is used no more; the child hears of it with the next task."""
        self.states.discard(state)
        self._gone.append(state)

    def compile(self, guide: RemoteGuide) -> None:
        """Raises what the backend has against it."""
        with self._lock:
            try:
                self._twice(lambda: self._compile(guide))
            except _ChildEnded as end:
                what = "is too large to compile" if end.is_late else "could not be compiled"
                raise UnsupportedConstraint(
                    f"guided backend {self._backend!r}: the {guide.constraint.kind} constraint "
                    f"{what}: {end} (limits: {CPU_SECONDS} s of one core, "
                    f"{WALL_SECONDS:.0f} s by the clock, {MEMORY_MIB} MiB)"
                ) from end

    def mask(self, state: RemoteState) -> Mask:
        """The mask behind the state's tokens; raises when the state cannot go on."""
        with self._lock:
            try:
                return self._twice(lambda: self._mask(state))
            except _ChildEnded as end:
                raise RequestFailedError(
                    f"guided backend {self._backend!r} gave no mask: {end} (limits: "
                    f"{CPU_SECONDS} s of one core, {WALL_SECONDS:.0f} s by the clock, "
                    f"{MEMORY_MIB} MiB)"
                ) from end

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._is_closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        if (child := self._child) is not None:
            child.kill()

    def _twice(self, work: Callable[[], Mask]) -> Mask:
        """Once more in a new child, where it ended one that had been at others' work too."""
        is_shared = self._num_answers > 0
        try:
            return work()
        except _ChildEnded as end:
            if end.is_late or not is_shared:
                raise
        return work()

    def _compile(self, guide: RemoteGuide) -> Mask:
        child, constraint = self._running(), guide.constraint
        value = json.dumps(constraint.value, ensure_ascii=False, separators=(",", ":"))
        answer = self._ask(child, Task(guide=guide.id, kind=constraint.kind, value=value))
        self._guides[guide.id] = set()
        return answer

    def _mask(self, state: RemoteState) -> Mask:
        child, guide = self._running(), state.guide
        if guide.id not in self._guides:
            self._compile(guide)
        self._guides.move_to_end(guide.id)
        self._guides[guide.id].add(state.id)
        keep = min(self._lengths.pop(state.id, 0), state.num_kept)
        tokens = state.tokens[keep:]
        more = len(tokens) // TOKENS_PER_SECOND
        task = Task(guide=guide.id, state=state.id, keep=keep, tokens=tokens, seconds_more=more)
        answer = self._ask(child, task)
        state.num_kept = self._lengths[state.id] = len(state.tokens)
        return answer

    def _ask(self, child: ChildProcess, task: Task) -> Mask:
        task = msgspec.structs.replace(
            task, gone_states=self._gone_states(), gone_guides=self._idle_guides(task.guide)
        )
        data = child.ask(msgspec.msgpack.encode(task), WALL_SECONDS + task.seconds_more)
        if data is None:
            child.kill()
            raise _ChildEnded(is_late=child.was_late or child.by_its_limit)
        self._num_answers += 1
        answer = msgspec.msgpack.decode(data, type=Mask)
        if answer.error:
            raise error_class(answer.error_type)(answer.error)
        return answer

    def _gone_states(self) -> list[int]:
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for states in self._guides.values():
            states.difference_update(gone)
        for state in gone:
            self._lengths.pop(state, None)
        return gone

    def _idle_guides(self, wanted: int) -> list[int]:
        idle = [guide for guide, states in self._guides.items() if not states and guide != wanted]
        gone = idle[: max(0, len(idle) - MOST_IDLE_GUIDES)]
        for guide in gone:
            del self._guides[guide]
        return gone

    def _running(self) -> ChildProcess:
        """The child; a new one knows nothing."""
        if self._child is None or not self._child.alive:
            self._guides.clear()
            self._lengths.clear()
            self._num_answers = 0
            if self._is_closed:
                raise RequestFailedError("the engine is closed")
            self._child = child = ChildProcess(CHILD)
            data = child.ask(self._start, START_SECONDS)
            cause = "it ended" if data is None else msgspec.msgpack.decode(data, type=Mask).error
            if cause or self._is_closed:
                child.kill()
                raise RequestFailedError(
                    f"the process of guided backend {self._backend!r} has failed: "
                    f"{cause or 'the engine is closed'}"
                )
        return self._child


def error_answer(error: BaseException, backend: str) -> Mask:
    """What went wrong in a child; an error of ours keeps its class."""
    name = type(error).__name__
    if isinstance(error, OctavoError) and error_class(name) is type(error):
        return Mask(error=f"guided backend {backend!r}: {error}", error_type=name)
    text = " ".join(f"{name}: {error}".split())[:500]
    return Mask(
        error=f"guided backend {backend!r} failed: {text}", error_type=RequestFailedError.__name__
    )
