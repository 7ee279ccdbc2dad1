"""One real server on the embedded model for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from live_server import LiveServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server") / "log") as live:
        yield live


@pytest.fixture(scope="session")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
