from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.hub_stand_in import FILES, Hub, Repository, hub_stand_in


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "MODELSCOPE", "OCTAVO_")) or "proxy" in name.lower():
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "ms"))
    monkeypatch.setattr("octavo_plugins.sources.hub.client.MAX_WAIT_SECONDS", 0.01)
    with hub_stand_in() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)
        server.repositories["org/model"] = Repository({"main": dict(FILES), "master": dict(FILES)})
        yield server
