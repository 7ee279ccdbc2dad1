"""The engine's guides: compiled beside the step loop, kept by what they enforce."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from octavo.engine.messages import EngineRequest, GuideRequest
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuidedBackend, GuideVocabulary

MOST_GUIDES = 1024
"""Kept after their last use; a guide is some hundred KB at most."""
COMPILE_THREADS = 2


class Guides:
    """Compiles guides for one engine. ``vocabulary`` is called once, in a compiling thread."""

    def __init__(self, host: PluginHost, vocabulary: Callable[[], GuideVocabulary]) -> None:
        self._host = host
        self._make_vocabulary = vocabulary
        self._lock = threading.Lock()
        self._vocabulary: GuideVocabulary | None = None
        self._backends: dict[str, GuidedBackend] = {}
        self._guides: OrderedDict[tuple[str, str, str], Future[Guide]] = OrderedDict()
        self._threads = ThreadPoolExecutor(COMPILE_THREADS, "octavo-guides")

    def guide(self, request: GuideRequest) -> Future[Guide]:
        """The guide, or its failure, when it is compiled; equal requests share one."""
        key = (request.backend, request.kind, request.value)
        future = self._guides.get(key)
        if future is None:
            future = self._threads.submit(self._compile, request)
            self._guides[key] = future
            if len(self._guides) > MOST_GUIDES:
                self._guides.popitem(last=False)
        self._guides.move_to_end(key)
        return future

    def close(self) -> None:
        """Compile no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, request: GuideRequest) -> Guide:
        plugin = self._host.guided_backends.info(request.backend).plugin
        call = f"guided backend {request.backend!r}"
        with self._host.faults.guard(plugin, call, request=True):
            constraint = Constraint(kind=request.kind, value=json.loads(request.value))
            return self._backend(request.backend).compile(constraint)

    def _backend(self, name: str) -> GuidedBackend:
        with self._lock:
            if name not in self._backends:
                if self._vocabulary is None:
                    self._vocabulary = self._make_vocabulary()
                self._backends[name] = self._host.guided_backends.load(name)(self._vocabulary)
            return self._backends[name]


class CompilingRequests:
    """Requests that wait for their guides."""

    def __init__(self, guides: Guides) -> None:
        self._guides = guides
        self._waiting: list[tuple[EngineRequest, Future[Guide]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: EngineRequest, guide: GuideRequest) -> None:
        """Begin to compile."""
        self._waiting.append((request, self._guides.guide(guide)))

    def abort(self, sequences: list[int]) -> None:
        """Forget requests of which nothing is left to do."""
        ended = set(sequences)
        self._waiting = [(r, f) for r, f in self._waiting if not ended.issuperset(r.sequences)]

    def take(self, seconds: float) -> list[tuple[EngineRequest, Guide | Exception]]:
        """Those that wait no more, with guide or failure; waits so long for the first."""
        wait([future for _, future in self._waiting], seconds, return_when=FIRST_COMPLETED)
        done = [pair for pair in self._waiting if pair[1].done()]
        self._waiting = [pair for pair in self._waiting if pair not in done]
        return [(request, _outcome(future)) for request, future in done]

    def close(self) -> None:
        """Compile no more."""
        self._waiting.clear()
        self._guides.close()


def _outcome(future: Future[Guide]) -> Guide | Exception:
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, Exception) else RuntimeError(str(error))
