"""POST /ping and /invocations: SageMaker's two paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server_faults import connect, request_bytes

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = {"messages": HELLO, "temperature": 0, "max_tokens": 8}
PROMPTS = {"prompt": ["The capital of France is", "Hello"], "temperature": 0, "max_tokens": 4}
SAME = [("/v1/chat/completions", CHAT), ("/v1/completions", PROMPTS)]
ADAPTER = "X-Amzn-SageMaker-Adapter-Identifier"


def told(answer: dict[str, Any]) -> dict[str, Any]:
    """All but what is another in each answer."""
    changing = ("id", "created", "usage")
    return {name: value for name, value in answer.items() if name not in changing}


def texts(events: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Of a stream, whatever the pieces: by kind of event and choice."""
    joined: dict[tuple[str, int], str] = {}
    for event in events:
        for choice in event["choices"]:
            place = event["object"], choice["index"]
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            joined[place] = joined.get(place, "") + (piece or "")
    return joined


@pytest.mark.parametrize(("path", "body"), SAME)
def test_a_body_is_answered_as_its_own_route_answers_it(http, path, body) -> None:
    answers = [http.post(each, json=body) for each in ("/invocations", path)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert told(answers[0].json()) == told(answers[1].json())


@pytest.mark.parametrize(("path", "body"), SAME)
def test_a_stream_is_that_of_its_own_route(http, path, body) -> None:
    streams = []
    for each in ("/invocations", path):
        reply = http.post(each, json={**body, "stream": True})
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        streams.append(texts([json.loads(line) for line in lines]))
    assert any(streams[0].values())
    assert streams[0] == streams[1]


@pytest.mark.parametrize("is_stream", [False, True])
def test_errors_of_the_engine_name_the_bodys_own_field(http, is_stream) -> None:
    messages = [{"role": "user", "content": "a " * 2000}]
    for body, param in (({"messages": messages}, "messages"), ({"prompt": "a " * 2000}, "prompt")):
        reply = http.post("/invocations", json={**body, "stream": is_stream})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")


@pytest.mark.parametrize(
    "body", [{}, {"input": "Hello"}, {"messages": None}, {"messages": HELLO, "prompt": "a"}]
)
def test_a_body_of_no_route_or_of_two_is_refused(http, body) -> None:
    reply = http.post("/invocations", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("give messages, for a conversation, or")


@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_what_its_own_route_refuses_is_refused_by_the_same_name(http, name) -> None:
    reply = http.post("/invocations", json={name: []})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_sagemakers_header_names_the_adapter_in_place_of_the_model(http) -> None:
    for header, model, status in (("octavo/tiny", "no/such", 200), ("no/such", "octavo/tiny", 404)):
        body = {**CHAT, "model": model}
        reply = http.post("/invocations", json=body, headers={ADAPTER: header})
        assert reply.status_code == status
    assert reply.json()["error"]["code"] == "model_not_found"
    assert "'no/such'" in reply.json()["error"]["message"]


def test_an_empty_header_leaves_the_bodys_model(http) -> None:
    for model, status in (("octavo/tiny", 200), ("no/such", 404)):
        reply = http.post("/invocations", json={**CHAT, "model": model}, headers={ADAPTER: ""})
        assert reply.status_code == status


@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON"])
def test_a_ping_by_post_looks_at_no_body(http, content) -> None:
    reply = http.post("/ping", content=content)
    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_a_ping_without_a_length_is_answered(server) -> None:
    with connect(server.url) as client:
        client.sendall(request_bytes("/ping").replace(b"GET", b"POST", 1))
        assert client.recv(64).startswith(b"HTTP/1.1 200 ")


def test_ping_is_answered_by_each_of_its_methods_and_no_other_path_takes_both(http) -> None:
    assert http.head("/ping").status_code == 200
    refused = http.put("/ping")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert http.post("/health").status_code == 405
