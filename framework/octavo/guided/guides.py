"""The engine's guides: compiled beside the step loop, kept by what they enforce."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from msgspec import structs

from octavo.errors import RequestFailedError
from octavo.guided.byte_automaton import automaton_guide
from octavo.guided.choose import first_that_compiles
from octavo.guided.remote import RemoteBackend
from octavo.guided.sequence import CompiledGuide
from octavo.messages import EngineRequest, GuideRequest
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuidedBackend, GuideVocabulary

MOST_BYTES = 2**27
"""Most that guides take which are kept after their last use, as measured where they were tried."""
GUIDE_BYTES = 2**14
"""What the least takes, with its masks and what Python keeps of it."""
BYTES_PER_CHAR = 16
"""What a guide takes for a character of its source if nobody has measured: 10 in llguidance."""
COMPILE_THREADS = 2


class Guides:
    """Compiles guides for one engine. ``vocabulary`` is called once, in a compiling thread."""

    def __init__(self, host: PluginHost, vocabulary: Callable[[], GuideVocabulary]) -> None:
        self._host = host
        self._make_vocabulary = vocabulary
        self._lock = threading.Lock()
        self._vocabulary: GuideVocabulary | None = None
        self._native: dict[str, GuidedBackend] = {}
        self._remote: dict[str, RemoteBackend] = {}
        self._is_closed = False
        self._guides: OrderedDict[tuple[str, str, str], tuple[Future[CompiledGuide], int]] = (
            OrderedDict()
        )
        self._num_bytes = 0
        self._threads = ThreadPoolExecutor(COMPILE_THREADS, "octavo-guides")

    def guide(self, request: GuideRequest) -> Future[CompiledGuide]:
        """The guide, or its failure, when it is compiled; equal requests share one."""
        key = (request.backend, request.kind, request.value)
        future, num_bytes = self._guides.pop(key, (None, 0))
        if future is not None and _has_failed(future):  # a busy machine's failure passes
            future = None
            self._num_bytes -= num_bytes
        if future is None:
            future = self._threads.submit(self._compile, request)
            num_bytes = _num_bytes(request)
            self._num_bytes += num_bytes
        self._guides[key] = future, num_bytes
        while self._num_bytes > MOST_BYTES and len(self._guides) > 1:
            _, (_, num_bytes) = self._guides.popitem(last=False)
            self._num_bytes -= num_bytes
        return future

    def close(self) -> None:
        """Compile no more, and end the processes that fill masks."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_closed = True
            for backend in self._remote.values():
                backend.close()

    def _compile(self, request: GuideRequest) -> CompiledGuide:
        one, guide = first_that_compiles(request, self._compiled, self._host)
        return CompiledGuide(guide, backend=one.backend)

    def _compiled(self, request: GuideRequest) -> Guide:
        plugin = self._host.guided_backends.info(request.backend).plugin
        call = f"guided backend {request.backend!r}"
        with self._host.faults.guard(plugin, call, request=True):
            if request.automaton:  # made where the constraint was checked
                return automaton_guide(request.automaton, self._known_vocabulary())
            constraint = Constraint(kind=request.kind, value=json.loads(request.value))
            guide = self._backend(request.backend).compile(constraint)
            if not callable(getattr(guide, "start", None)):
                raise TypeError(f"compile returned {type(guide).__name__}, which is no Guide")
            return guide

    def _backend(self, name: str) -> GuidedBackend:
        """What is not native works in processes of its own, and is never imported here."""
        backends = self._host.guided_backends
        vocabulary = self._known_vocabulary()
        with self._lock:
            if backends.info(name).metadata["native"]:
                if name not in self._native:
                    self._native[name] = backends.make(name, vocabulary)
                return self._native[name]
            if name not in self._remote:
                manifest = self._host.manifest()
                self._remote[name] = RemoteBackend(name, manifest, vocabulary)
            return self._remote[name]

    def _known_vocabulary(self) -> GuideVocabulary:
        with self._lock:
            if self._is_closed:
                raise RequestFailedError("the engine is closed")
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary


class CompilingRequests:
    """Requests that wait for their guides."""

    def __init__(self, guides: Guides) -> None:
        self._guides = guides
        self._waiting: list[tuple[EngineRequest, Future[CompiledGuide], float]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def num_sequences(self) -> int:
        """Sequences of all these requests."""
        return sum(len(request.sequences) for request, _, _ in self._waiting)

    def add(self, request: EngineRequest, guide: GuideRequest) -> None:
        """Begin to compile."""
        future = self._guides.guide(guide)
        # Whose automaton is large, and is kept with the guide: a request may wait for long.
        bare = structs.replace(request, guide=structs.replace(guide, automaton=b""))
        self._waiting.append((bare, future, time.monotonic()))

    def abort(self, sequences: list[int]) -> list[EngineRequest]:
        """Forget requests of which nothing is left to do, and return them."""
        ended = set(sequences)
        waiting, self._waiting = self._waiting, []
        forgotten = []
        for each in waiting:
            if ended.issuperset(each[0].sequences):
                forgotten.append(each[0])
            else:
                self._waiting.append(each)
        return forgotten

    def take(self, seconds: float) -> list[tuple[EngineRequest, CompiledGuide | Exception]]:
        """Requests that wait no more, with guide or failure; waits so long for the first."""
        wait([future for _, future, _ in self._waiting], seconds, return_when=FIRST_COMPLETED)
        waiting, self._waiting = self._waiting, []
        done: list[tuple[EngineRequest, Future[CompiledGuide], float]] = []
        for each in waiting:
            (done if each[1].done() else self._waiting).append(each)
        return [(request, _outcome(future, since)) for request, future, since in done]

    def close(self) -> None:
        """Compile no more."""
        self._waiting.clear()
        self._guides.close()


def _num_bytes(request: GuideRequest) -> int:
    guessed = request.num_bytes or 4 * GUIDE_BYTES + BYTES_PER_CHAR * len(request.value)
    return GUIDE_BYTES + len(request.value) + (2 * len(request.automaton) or guessed)


def _has_failed(future: Future[CompiledGuide]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _outcome(future: Future[CompiledGuide], since: float) -> CompiledGuide | Exception:
    error = future.exception()
    if error is None:
        return replace(future.result(), seconds=time.monotonic() - since)
    return error if isinstance(error, Exception) else RuntimeError(str(error))
