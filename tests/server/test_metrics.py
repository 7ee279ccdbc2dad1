"""/metrics of a real server: what it counts, in which form, and for whom."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from textwrap import dedent

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from live_server import running_server
from markdown import ROOT, rows
from octavo.server.metrics import ENGINE_ANSWER_SECONDS
from server_faults import engine_of, until

Values = dict[tuple[str, ...], float]
PAGE = ROOT / "docs" / "metrics.md"
VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_success_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "cache_config_info",
)
OURS = (
    "plugin_calls_total",
    "plugin_dropped_events_total",
    "plugin_failures_total",
    "plugin_seconds_total",
    "http_requests_total",
    "http_request_duration_seconds",
    "event_loop_lag_seconds",
    "engine_up",
    "stored_responses",
    "stored_response_bytes",
    "num_swaps_total",
    "noted_fields_total",
    "num_adapters_on_device",
    "adapter_loads_total",
    "adapter_requests_total",
    "prompt_tokens_cached_total",
)


def read(http: httpx.Client) -> Values:
    """Samples by name and by the values of their labels, but for the model's name."""
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "octavo/tiny"
            found[sample.name.removeprefix("octavo:"), *sample.labels.values()] = sample.value
    return found


def grown(http: httpx.Client, work: Callable[[], object]) -> Values:
    """What has grown while something was done, once what went before has ended."""
    until(lambda: read(http)["num_requests_running",] == 0)
    before = read(http)
    work()
    return {k: v - before.get(k, 0) for k, v in read(http).items() if v != before.get(k, 0)}


def complete(http: httpx.Client, **body) -> dict:
    given = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, **body}
    answer = http.post("/v1/completions", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_has_the_form_that_prometheus_wants(http: httpx.Client) -> None:
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text.endswith("\n")
    helps = re.findall(r"^# HELP (\S+) (.+)$", answer.text, re.MULTILINE)
    assert len({name for name, _ in helps}) == len(helps)
    assert {name for name, _ in helps} == {f"octavo:{name}" for name in (*VLLM, *OURS)}


def test_each_metric_has_a_row_in_the_documentation() -> None:
    tables = rows(PAGE, "As vLLM names them") + rows(PAGE, "Ours alone")
    assert sorted(name.strip("`") for name, *_ in tables) == sorted((*VLLM, *OURS))


def test_a_completion_is_counted(http: httpx.Client) -> None:
    answers = []
    delta = grown(http, lambda: answers.append(complete(http)))
    usage = answers[0]["usage"]
    assert delta["prompt_tokens_total",] == usage["prompt_tokens"]
    assert delta["generation_tokens_total",] == usage["completion_tokens"] == 8
    assert delta["request_success_total", "length"] == 1
    assert ("request_success_total", "stop") not in delta
    assert delta["time_to_first_token_seconds_count",] == 1
    assert delta["inter_token_latency_seconds_count",] == 7
    assert delta["request_generation_tokens_sum",] == 8
    assert delta["request_params_max_tokens_sum",] == 8
    assert delta["request_params_n_sum",] == 1
    assert delta["http_requests_total", "POST", "/v1/completions", "200"] == 1
    # A step ahead of its results may compute one token more, which nobody gets.
    assert (
        delta["iteration_tokens_total_sum",] >= usage["prompt_tokens"] + 7
        or ("prefix_cache_hits_total",) in delta
    )
    assert delta["iteration_tokens_total_count",] >= 8


def test_an_answer_that_is_kept_counts_until_it_is_deleted(http: httpx.Client) -> None:
    before = read(http)
    long = {str(number): "x" * 500 for number in range(16)}
    asked = {"input": "Hello", "max_output_tokens": 4, "metadata": long}
    made = http.post("/v1/responses", json=asked).json()
    after = read(http)
    assert after["stored_responses",] == before["stored_responses",] + 1
    assert after["stored_response_bytes",] > before["stored_response_bytes",] + 4000
    http.delete(f"/v1/responses/{made['id']}")
    assert read(http)["stored_responses",] == before["stored_responses",]


def test_a_requests_stages_add_up_to_its_time(http: httpx.Client) -> None:
    delta = grown(http, lambda: complete(http, max_tokens=20))
    queue, prefill, decode = (
        delta[f"request_{stage}_time_seconds_sum",] for stage in ("queue", "prefill", "decode")
    )
    assert 0 <= queue < prefill
    assert queue + prefill + decode <= delta["e2e_request_latency_seconds_sum",]
    assert delta["request_inference_time_seconds_sum",] == pytest.approx(prefill + decode)
    assert delta["inter_token_latency_seconds_sum",] == pytest.approx(decode, rel=0.05)


def test_a_prompt_that_comes_again_hits_the_prefix_cache(http: httpx.Client) -> None:
    prompt = "A prompt of its own, long enough for several blocks of the cache. " * 4
    complete(http, prompt=prompt)
    delta = grown(http, lambda: complete(http, prompt=prompt))
    assert 0 < delta["prefix_cache_hits_total",] < delta["prefix_cache_queries_total",]
    assert delta["prompt_tokens_cached_total",] == delta["prefix_cache_hits_total",]


def test_a_running_request_shows_and_leaves_nothing_behind(http: httpx.Client) -> None:
    body = {"prompt": "Hi", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        during = read(http)
    assert during["num_requests_running",] == 1
    assert during["kv_cache_usage_perc",] > 0
    until(lambda: read(http)["num_requests_running",] == 0)
    after = read(http)
    assert (after["num_requests_running",], after["kv_cache_usage_perc",]) == (0, 0)
    ended = after["request_success_total", "abort"] - during["request_success_total", "abort"]
    assert ended == 1


def test_requests_are_counted_by_known_routes_only(http: httpx.Client) -> None:
    def work() -> None:
        http.get("/v1/models/no/such/model")
        http.get("/made-up/7")
        http.put("/v1/models")
        http.request("PROPFIND", "/v1/models")
        http.post("/v1/completions", json={"prompt": "x", "temperature": "hot"})

    delta = grown(http, work)
    found = {key[1:]: v for key, v in delta.items() if key[0] == "http_requests_total"}
    found.pop(("GET", "/metrics", "200"))
    routes = sorted(found)
    assert ("(other)", "/v1/models", "405") in routes
    assert ("GET", "(other)", "404") in routes
    assert ("POST", "/v1/completions", "400") in routes
    assert [r for r in routes if r[0] == "GET" and "{" in r[1]], routes
    assert ("PUT", "/v1/models", "405") in routes
    assert len(routes) == 5


def test_plugins_are_counted_in_both_processes(http: httpx.Client) -> None:
    found = read(http)
    assert found["plugin_calls_total", "executors_local"] > 0
    assert found["plugin_calls_total", "tokenizers_transformers"] > 0
    assert found["plugin_seconds_total", "executors_local"] > 0
    assert found["plugin_failures_total", "executors_local"] == 0


@dataclass
class Collector:
    """Takes what is posted to it."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)


@pytest.fixture
def collector():
    made = Collector()

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield made
        server.shutdown()


@pytest.mark.slow
def test_another_server_needs_its_key_sends_spans_and_counts_failures_of_plugins(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_routes.py").write_text(
        dedent("""
            from octavo_registry import hookimpl
            from octavo_registry.routes import Endpoint

            OCTAVO_API = "1"

            @hookimpl
            def register_routes(routes):
                routes.add("broken", "broken_routes:Broken")

            class Broken:
                def __init__(self, server):
                    pass

                def endpoints(self):
                    return [Endpoint(method="GET", path="/broken", app=fail)]

            async def fail(scope, receive, send):
                raise RuntimeError("it broke")
        """)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    flags = ("--api-key", "k", "--plugin", "broken_routes", "--otlp-traces-endpoint", collector.url)
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"authorization": "Bearer k", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    with running_server(tmp_path / "log", *flags) as live:
        with live.client() as stranger:
            assert stranger.get("/metrics").status_code == 401
        with live.client(headers=headers) as http:
            assert http.get("/broken").status_code == 500
            complete(http)
            found = read(http)
    assert found["plugin_failures_total", "broken_routes"] == 1
    assert found["plugin_calls_total", "broken_routes"] >= 2
    assert found["http_requests_total", "GET", "/metrics", "401"] == 1
    sent = b"".join(collector.bodies)  # at the latest when the process ends
    assert b"llm_request" in sent
    assert bytes.fromhex(trace) in sent


def test_the_dashboard_shows_every_metric_and_no_other(http: httpx.Client) -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "octavo.json").read_text())
    queries = [t["expr"] for panel in board["panels"] for t in panel.get("targets", ())]
    queries += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    named = {name for query in queries for name in re.findall(r"octavo:(\w+)", query)}
    samples = {key[0] for key in read(http)}
    assert named <= samples
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} == {*VLLM, *OURS}


def test_the_dashboards_panels_do_not_overlap() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "octavo.json").read_text())
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_an_engine_that_hangs_or_has_died_is_told_of_as_it_was_last(tmp_path: Path) -> None:
    # Another engine takes long to start; a server that ended would soon answer nobody.
    flags = ("--on-engine-death", "restart")
    with running_server(tmp_path / "log", *flags) as live, live.client() as http:
        engine = engine_of(live.process.pid)
        complete(http)
        before = read(http)
        os.kill(engine, signal.SIGSTOP)
        began = time.monotonic()
        hung = read(http)
        assert time.monotonic() - began < ENGINE_ANSWER_SECONDS + 10
        os.kill(engine, signal.SIGCONT)
        assert hung["iteration_tokens_total_sum",] == before["iteration_tokens_total_sum",]
        assert hung["engine_up",] == 1
        os.kill(engine, signal.SIGKILL)
        until(lambda: read(http)["engine_up",] == 0)
        assert read(http)["generation_tokens_total",] == 8
