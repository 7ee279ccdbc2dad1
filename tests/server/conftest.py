"""One real server on each embedded model for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from live_server import FLAGS, LiveServer, running_server

if TYPE_CHECKING:
    import openai

    from octavo.frontend.async_llm import AsyncLLM


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server") / "log") as live:
        yield live


@pytest.fixture(scope="session")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """OpenAI's own package."""
    import openai  # half a second, which other files need not wait

    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def engine() -> Iterator[AsyncLLM]:
    """One in this process, for servers that tests make around it."""
    from octavo.frontend.async_llm import AsyncLLM
    from octavo.server.app import add_built_in_routes

    made = AsyncLLM("octavo/tiny", engine_process=False, dtype="float32", num_threads=1)
    add_built_in_routes(made.host.routes)
    yield made
    made.close()


@pytest.fixture(scope="session")
def media_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one that `omni` may read files from."""
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory, media_folder: Path) -> Iterator[LiveServer]:
    """A server that sees and hears."""
    allowed = ("--allowed-local-media-path", str(media_folder))
    allowed += ("--allowed-media-domains", "localhost", "--allowed-media-domains", "127.0.0.1")
    log = tmp_path_factory.mktemp("omni") / "log"
    with running_server(log, *allowed, base=("octavo/tiny-omni", *FLAGS)) as live:
        yield live
