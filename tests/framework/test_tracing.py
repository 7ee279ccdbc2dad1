"""Spans of requests, as a collector would get them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo import AsyncLLM, SamplingParams
from octavo.errors import ConfigError, OctavoError
from octavo.observability.tracing import (
    PROTOCOL,
    Tracer,
    exporter_class,
    make_tracer,
    with_trace_context,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HEADERS = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"host", b"here")]


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    made = AsyncLLM("octavo/tiny", engine_process=False, num_threads=1, dtype="float32")
    yield made
    made.close()


@pytest.fixture
def spans(llm: AsyncLLM):
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "a/model")
    llm.trace(tracer)

    def finished() -> list[ReadableSpan]:
        tracer.flush()
        return list(exporter.get_finished_spans())

    yield finished
    llm.trace(None)


def params(**more) -> SamplingParams:
    given = {"max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "top_p": 0.75}
    return SamplingParams(**{**given, **more})


@pytest.mark.parametrize("kind", ["delta", "final", "cumulative"])
async def test_a_request_is_one_span_with_what_it_asked_and_got(llm, spans, kind) -> None:
    asked = params(output_kind=kind, n=2)
    outputs = [o async for o in llm.generate("Hello there", asked, request_id="r")]
    (span,) = spans()
    found = span.attributes
    assert (span.name, span.kind) == ("llm_request", SpanKind.SERVER)
    assert found["gen_ai.request.id"] == "r"
    assert found["gen_ai.response.model"] == "a/model"
    assert found["gen_ai.request.max_tokens"] == 6
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.top_p"] == 0.75
    assert found["gen_ai.request.n"] == 2
    assert found["gen_ai.usage.prompt_tokens"] == len(outputs[0].prompt_token_ids)
    assert found["gen_ai.usage.completion_tokens"] == 12
    assert found["gen_ai.response.finish_reasons"] == ("length", "length")
    assert span.status.status_code == StatusCode.UNSET


async def test_a_spans_times_are_those_of_the_request(llm, spans) -> None:
    (output,) = [o async for o in llm.generate("Hello", params(output_kind="final"))]
    (span,) = spans()
    found, metrics = span.attributes, output.metrics
    e2e = metrics.finished_seconds - metrics.arrival_seconds
    assert found["gen_ai.latency.e2e"] == e2e
    assert abs((span.end_time - span.start_time) / 1e9 - e2e) < 1e-3
    parts = [found[f"gen_ai.latency.time_in_{p}"] for p in ("queue", "model_inference")]
    assert 0 < sum(parts) <= e2e + 1e-3
    assert found["gen_ai.latency.time_to_first_token"] < e2e


async def test_a_span_begins_when_its_request_arrived(llm) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "a/model")
    prepared = llm._front.inputs.process("r", "Hello", params())
    with tracer.begin(prepared, time.monotonic() - 5.0):
        pass
    tracer.flush()
    (span,) = exporter.get_finished_spans()
    assert 5.0 <= (span.end_time - span.start_time) / 1e9 < 6.0
    assert abs(span.end_time / 1e9 - time.time()) < 5.0


async def test_a_reader_that_leaves_ends_the_span_as_aborted(llm, spans) -> None:
    stream = llm.generate("Hello", params(max_tokens=200, output_kind="delta"))
    await anext(stream)
    await stream.aclose()
    (span,) = spans()
    assert span.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert 1 <= span.attributes["gen_ai.usage.completion_tokens"] < 200
    assert span.status.status_code == StatusCode.UNSET


async def test_a_failed_request_is_a_failed_span(llm, spans) -> None:
    stream = llm.generate("Hello", params(max_tokens=500, output_kind="delta"))
    await anext(stream)
    with pytest.raises(OctavoError, match="no words"):
        await stream.athrow(OctavoError("no words"))
    (span,) = spans()
    assert span.status.status_code == StatusCode.ERROR
    assert span.status.description == "no words"


async def test_a_span_continues_the_trace_that_the_clients_headers_name(llm, spans) -> None:
    async def app(scope, receive, send) -> None:
        async for _ in llm.generate("Hello", params()):
            pass

    await with_trace_context(app)({"type": "http", "headers": HEADERS}, None, None)
    (span,) = spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("header", [b"", b"nonsense", b"00-0-0-01", b"\xff\xff"])
async def test_headers_that_name_no_trace_begin_a_new_one(llm, spans, header) -> None:
    async def app(scope, receive, send) -> None:
        async for _ in llm.generate("Hello", params()):
            pass

    scope = {"type": "http", "headers": [(b"traceparent", header)]}
    await with_trace_context(app)(scope, None, None)
    (span,) = spans()
    assert span.parent is None


async def test_without_a_tracer_nothing_is_made(llm, spans) -> None:
    llm.trace(None)
    async for _ in llm.generate("Hello", params()):
        pass
    assert spans() == []


@pytest.mark.parametrize(
    ("protocol", "module"), [("grpc", ".proto.grpc."), ("http/protobuf", ".proto.http.")]
)
def test_the_protocol_is_the_one_of_opentelemetrys_variable(
    protocol, module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROTOCOL, protocol)
    assert module in exporter_class().__module__
    make_tracer("http://127.0.0.1:9", "a/model")._provider.shutdown()


def test_an_unknown_protocol_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROTOCOL, "carrier pigeon")
    with pytest.raises(ConfigError, match="must be one of grpc, http/protobuf"):
        exporter_class()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace.export", "exporter"])
def test_a_missing_package_is_an_error_that_says_what_to_install(
    protocol, missing, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = protocol.partition("/")[0]
    names = {"exporter": f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter"}
    monkeypatch.setenv(PROTOCOL, protocol)
    monkeypatch.setitem(sys.modules, names.get(missing, missing), None)
    with pytest.raises(ConfigError, match=r"run: pip install 'octavo\[otel\]'"):
        exporter_class()
