"""The sources of model hubs where the network is busy, slow, or not there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from octavo.errors import ModelError
from octavo_plugins.sources.huggingface.source import HuggingFaceSource

NOBODY = "http://127.0.0.1:9"
WAIT = "octavo_plugins.sources.hub.client.MAX_WAIT_SECONDS"
NEVER = None
"""No longest wait that a wait could be compared with: to wait is an error."""


def find(name: str = "org/model") -> Path:
    path = HuggingFaceSource().find(name, revision=None)
    assert path is not None
    return path


def test_a_busy_server_is_asked_again(hub) -> None:
    hub.busy = 3
    find()
    hub.busy = 1000
    with pytest.raises(ModelError, match="refuses 'org/another': HTTP 503"):
        find("org/another")


def test_with_a_model_in_the_cache_a_busy_server_is_asked_once(hub, caplog) -> None:
    folder = find()
    hub.requests.clear()
    hub.busy = 1000
    assert find() == folder
    assert hub.busy == 999
    assert "Hugging Face cannot be asked (HTTP 503): using org/model as it is" in caplog.text


def test_without_a_network_the_cache_is_used_at_once_and_said_so(hub, monkeypatch, caplog) -> None:
    folder = find()
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    monkeypatch.setattr(WAIT, NEVER)
    assert find() == folder
    assert HuggingFaceSource().find_settings("org/model", revision=None) == folder
    assert caplog.text.count("cannot be asked ([Errno 111] Connection refused): using") == 2


def test_without_a_network_a_name_is_given_up_at_once(hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    monkeypatch.setattr(WAIT, NEVER)
    with pytest.raises(ModelError, match=r"at http://127\.0\.0\.1:9 cannot be reached for 'nope'"):
        find("nope")


def test_a_server_that_never_answers_is_not_waited_for_with_a_model_in_the_cache(
    hub, monkeypatch, caplog
) -> None:
    folder = find()
    monkeypatch.setattr("octavo_plugins.sources.hub.client.IMPATIENT_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert find() == folder
    assert "cannot be asked (timed out): using org/model" in caplog.text
