"""What is said of paths that other servers have."""

from __future__ import annotations

import pytest
from benchmarks.vllm_names import read_names

from octavo.server.http.absent import NO_REASON, why_absent


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v1/embeddings", "no models that embed, classify or score"),
        ("POST", "/rerank", "no models that embed, classify or score"),
        ("POST", "/v1/conversations", "keeps no conversations"),
        ("POST", "/v1/batches", "octavo run-batch"),
        ("GET", "/v1/batches/batch_1", "octavo run-batch"),
        ("GET", "/v1/files/file-1/content", "keeps no conversations or files"),
        ("GET", "/v1/videos/video_1", "answers in text"),
        ("GET", "/server_info", "/capabilities and /plugins"),
        ("POST", "/sleep", "no routes for development"),
        ("POST", "/v1/load_lora_adapter", "--allow-runtime-lora"),
        ("POST", "/v1/audio/transcriptions", "this model does not write down what is said"),
        ("POST", "/v1/audio/translations", "this model does not write down what is said"),
        ("GET", "/nonsense", "/docs shows all"),
    ],
)
def test_a_path_of_another_server_is_404_and_says_why(http, method, path, said) -> None:
    reply = http.request(method, path, json={} if method == "POST" else None)
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("route", [r for r in read_names().routes if "WEBSOCKET" not in r])
def test_a_route_of_vllms_is_there_or_says_why_not(http, route: str) -> None:
    method, path = route.split()
    path = path.format(response_id="resp_1")
    reply = http.request(method, path, json={} if method == "POST" else None)
    if "there is no such path" in reply.text:
        assert reply.status_code == 404
        assert why_absent(path) != NO_REASON
        assert why_absent(path) in reply.json()["error"]["message"]
    else:
        assert reply.status_code < 500


def test_what_is_only_near_such_a_path_has_no_reason() -> None:
    for path in ("/v1/embeddingsx", "/v1/embeddings/1", "/v1/responses", "/sleep/", ""):
        assert why_absent(path) == "/docs shows all"
