"""One OpenTelemetry span a request, sent to a collector; needs ``octavo[otel]``.

Names and attributes are those of vLLM's spans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from octavo.errors import ConfigError
from octavo.inputs import PreparedRequest
from octavo.outputs import RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
"""OpenTelemetry's own variable; vLLM reads it, too."""
PROTOCOLS: Final = ("grpc", "http/protobuf")
TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
EXPORT_SECONDS: Final = 3
"""Without those: the process's exit waits so long for a collector that is gone."""
NAMES: Final = ("traceparent", "tracestate")
SPAN_NAME: Final = "llm_request"

_carrier: ContextVar[dict[str, str] | None] = ContextVar("octavo.trace", default=None)
"""Trace headers of the HTTP request that is being answered."""
App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class Tracer:
    """Makes the spans of one server."""

    def __init__(self, exporter: SpanExporter, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        service = os.environ.get("OTEL_SERVICE_NAME") or "octavo"
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        # Spans leave in a thread of the processor's own; it drops them if nobody takes them.
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo")
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def begin(self, prepared: PreparedRequest, arrival_seconds: float) -> RequestSpan:
        """Open the span of a request that arrived at a time of the monotonic clock."""
        from opentelemetry.trace import SpanKind

        request, params = prepared.request, prepared.params
        offset = time.time() - time.monotonic()
        span = self._tracer.start_span(
            SPAN_NAME,
            context=self._propagator.extract(_carrier.get() or {}),
            kind=SpanKind.SERVER,
            start_time=int((arrival_seconds + offset) * 1e9),
            attributes={
                "gen_ai.request.id": request.request_id,
                "gen_ai.request.model": self._model_name,
                "gen_ai.response.model": self._model_name,
                "gen_ai.request.max_tokens": request.sampling.max_tokens,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.request.top_k": params.top_k,
                "gen_ai.request.n": params.n,
                "gen_ai.usage.prompt_tokens": len(request.prompt_token_ids),
            },
        )
        return RequestSpan(span, offset, is_delta=params.output_kind == "delta")

    def flush(self) -> None:
        """Send what is left now; at the process's exit that happens by itself."""
        self._provider.force_flush()


class RequestSpan:
    """One request's span while it is answered."""

    def __init__(self, span: Span, offset: float, *, is_delta: bool) -> None:
        self._span = span
        self._offset = offset
        self._is_delta = is_delta
        self._metrics: RequestMetrics | None = None
        self._error: str | None = None
        self._num_tokens: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def take(self, output: RequestOutput) -> None:
        """Note what the reader got."""
        self._metrics, self._error = output.metrics, output.error
        for each in output.outputs:
            before = self._num_tokens.get(each.index, 0) if self._is_delta else 0
            self._num_tokens[each.index] = before + len(each.token_ids)
            self._reasons[each.index] = each.finish_reason or "abort"

    def __enter__(self) -> RequestSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the span; a request that its reader left before the end was aborted."""
        from opentelemetry.trace import Status, StatusCode

        now = time.monotonic()
        failure = self._error or (str(error) if isinstance(error, Exception) else None)
        if failure is not None:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        ended = now
        if self._metrics is not None:
            ended = self._metrics.finished_seconds or now
            self._span.set_attributes(_times(self._metrics, ended))
            reasons = [self._reasons[index] for index in sorted(self._reasons)]
            self._span.set_attribute("gen_ai.response.finish_reasons", reasons)
        self._span.set_attribute("gen_ai.usage.completion_tokens", sum(self._num_tokens.values()))
        self._span.end(int((ended + self._offset) * 1e9))


def exporter_class() -> type[SpanExporter]:
    """Return what sends spans; raises ConfigError without ``octavo[otel]``."""
    protocol = os.environ.get(PROTOCOL) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL}={protocol!r} must be one of {', '.join(PROTOCOLS)}")
    kind = protocol.partition("/")[0]
    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
        import_module("opentelemetry.sdk.trace.export")
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint needs OpenTelemetry ({error}); run: pip install 'octavo[otel]'"
        ) from error
    exporter: type[SpanExporter] = module.OTLPSpanExporter
    return exporter


def make_tracer(endpoint: str, model_name: str) -> Tracer:
    """Return a tracer that sends to the collector at ``endpoint``."""
    exporter: Any = exporter_class()
    options: dict[str, Any] = {"endpoint": endpoint}
    if "grpc" in exporter.__module__:
        # The exporter takes https:// alone for encrypted, and asks for a choice otherwise.
        options["insecure"] = not endpoint.startswith("https://")
    if not any(name in os.environ for name in TIMEOUTS):
        options["timeout"] = EXPORT_SECONDS
    return Tracer(exporter(**options), model_name)


def with_trace_context(app: App) -> App:
    """Let spans continue the trace of the client, whose headers name it."""

    async def traced(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
            _carrier.set({n: headers[n].decode("latin-1") for n in NAMES if n in headers})
        await app(scope, receive, send)

    return traced


def _times(metrics: RequestMetrics, ended: float) -> dict[str, float]:
    arrival, first = metrics.arrival_seconds, metrics.first_token_seconds
    queue, prefill = metrics.seconds_in_queue, metrics.seconds_in_prefill
    decode = None if first is None else ended - first
    times = {
        "gen_ai.latency.e2e": ended - arrival,
        "gen_ai.latency.time_to_first_token": None if first is None else first - arrival,
        "gen_ai.latency.time_in_queue": queue,
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": (
            None if prefill is None or decode is None else prefill + decode
        ),
    }
    known = {name: value for name, value in times.items() if value is not None}
    return {**known, "gen_ai.usage.cached_tokens": metrics.num_cached_tokens}
