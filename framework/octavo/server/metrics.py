"""All that /metrics tells: of requests, HTTP, the event loop, plugins, and the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from octavo.errors import OctavoError
from octavo.frontend.async_llm import AsyncLLM
from octavo.observability.engine_metrics import EngineReport, plugin_metrics
from octavo.observability.metrics import (
    Counter,
    Histogram,
    MetricValues,
    add_up,
    exposition,
    gauge,
    total,
)
from octavo.observability.request_metrics import REQUEST_SECONDS, RequestMeter
from octavo.observability.shared_metrics import PUBLISH_SECONDS, SharedMetrics
from octavo_registry.faults import Faults

log = logging.getLogger(__name__)

LAG_PERIOD_SECONDS: Final = 0.1
LAG_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
ENGINE_ANSWER_SECONDS: Final = 2.0
"""An engine that is in a longer step, or hangs, is told of as it was last."""
OTHER: Final = "(other)"
METHODS: Final = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))


class HttpMeter:
    """Counts answers by what the server knows, so that no client can make new labels."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = frozenset(paths)
        self._answers = Counter(
            "http_requests_total",
            "HTTP requests; status 499 is a client that left.",
            ("method", "route", "status"),
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From a request's headers to its answer's end.",
            REQUEST_SECONDS,
            ("route",),
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one; ``route`` is an endpoint's path, or what the client asked for."""
        route = route if route in self._paths else OTHER
        method = method if method in METHODS else OTHER
        self._answers.add(1, (method, route, str(status)))
        self._seconds.observe(seconds, 1, (route,))

    def read(self) -> list[MetricValues]:
        """Return both."""
        return [self._answers.read(), self._seconds.read()]


class LoopMeter:
    """Sees how late the event loop is, ten times a second."""

    def __init__(self) -> None:
        self._lag = Histogram(
            "event_loop_lag_seconds", "How late the server's event loop was.", LAG_SECONDS
        )

    async def watch(self) -> None:
        """Run as long as the loop is to be watched."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + LAG_PERIOD_SECONDS
            await asyncio.sleep(LAG_PERIOD_SECONDS)
            self._lag.observe(max(0.0, now() - due))

    def read(self) -> list[MetricValues]:
        """Return the histogram."""
        return [self._lag.read()]


class ServerMeter:
    """Everything that one server process counts, and the engine's report on top."""

    def __init__(self, engine: AsyncLLM, faults: Faults, model_name: str, noted: Counter) -> None:
        """``noted`` counts fields of requests that had no effect."""
        self.requests = RequestMeter(engine.max_model_len)
        self.loop = LoopMeter()
        self.http: HttpMeter | None = None
        """Set once the routes are known."""
        self.shared: SharedMetrics | None = None
        """Set where the server has several HTTP processes."""
        self._engine = engine
        self._faults = faults
        self._noted = noted
        self.stored_sizes: Callable[[], Awaitable[tuple[int, int]]] | None = None
        """Tells how many answers are kept, and their bytes; None where none may be."""
        self._model_name = model_name
        self._asked: asyncio.Task[None] | None = None
        self._report: EngineReport | None = None
        engine.observe(self.requests)

    async def watch(self) -> None:
        """Run as long as the server does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.loop.watch())
            has_failed = False
            while self.shared is not None:
                try:
                    self.shared.publish(self.read())
                    has_failed = False
                except OSError as error:
                    if not has_failed:
                        log.warning("the other workers do not see this one's metrics: %s", error)
                    has_failed = True
                await asyncio.sleep(PUBLISH_SECONDS)

    def read(self) -> list[MetricValues]:
        """Return what this process counts."""
        http = [] if self.http is None else self.http.read()
        by_adapter = total(
            "adapter_requests_total",
            "Requests by LoRA adapter; an empty name is the model alone.",
            self._engine.adapters.num_requests.copy(),
            label="adapter",
        )
        own = [*self.requests.read(), by_adapter, *http, *self.loop.read(), self._noted.read()]
        return [*own, *plugin_metrics(self._faults)]

    async def text(self) -> str:
        """Return all metrics of the server, in Prometheus' form."""
        report = await self._engine_report()
        processes = [self.read()]
        if self.shared is not None:
            self.shared.publish(processes[0])
            processes = self.shared.read()
        if report is not None and report.is_elsewhere:
            processes.append(report.plugins)
        metrics = [
            gauge("engine_up", "Whether the engine lives.", int(self._engine.alive)),
            *(report.engine if report is not None else ()),
            *add_up(processes),
            *await self._stored(),
            self._cache_config(),
        ]
        return exposition(metrics, {"model_name": self._model_name})

    async def _stored(self) -> list[MetricValues]:
        """What all processes of the server keep together."""
        count, num_bytes = (0, 0) if self.stored_sizes is None else await self.stored_sizes()
        return [
            gauge("stored_responses", "Answers that are kept.", count),
            gauge("stored_response_bytes", "Their bytes.", num_bytes),
        ]

    async def _engine_report(self) -> EngineReport | None:
        """Ask the engine, once for all who wait; without an answer the last one holds."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask())
        await asyncio.wait({self._asked}, timeout=ENGINE_ANSWER_SECONDS)
        return self._report

    async def _ask(self) -> None:
        with suppress(OctavoError):  # it has ended
            self._report = await self._engine.metrics()

    def _cache_config(self) -> MetricValues:
        ready, cache = self._engine.ready, self._engine.config.cache
        return gauge(
            "cache_config_info",
            "How the KV cache is made.",
            1,
            block_size=str(ready.block_tokens),
            num_gpu_blocks=str(ready.num_blocks),
            cache_dtype=cache.kv_cache_dtype,
            enable_prefix_caching=str(cache.enable_prefix_caching),
            gpu_memory_utilization=str(cache.gpu_memory_utilization),
        )
