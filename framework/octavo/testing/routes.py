"""Route groups, in a server of this process around a small engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from octavo.config.server import ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.frontend import make_frontend, start_in_process
from octavo.model_folder import open_model
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.testing.calm import calm
from octavo.testing.modes import engine_config
from octavo.testing.random_model import make_random_model
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo_registry import Endpoint, PluginHost

ANSWER_SECONDS: Final = 20.0
HELD_SECONDS: Final = 1.0
"""An application that keeps its event loop for longer stops its plugin's other routes."""
_PARAMETER: Final = re.compile(r"\{[^}]*\}")

RouteSample = tuple[str, str, Any]
"""Method, path and JSON body of a request that must be answered with a status below 300."""


def check_routes(host: PluginHost, name: str) -> list[Check]:
    """Send a request to each endpoint of the group, and those of its ``samples``."""
    title = f"route group {name!r}"
    with TemporaryDirectory(prefix="octavo-kit-") as at, calm():
        folder = Path(at)
        make_random_model(folder, vocab_size=320, max_position_embeddings=128)
        config = engine_config(folder)
        front = make_frontend(config, host, open_model(config.model, host), start_in_process)
        engine = AsyncLLM.of_frontend(front)
        try:
            server = ServerContext(
                engine=engine, host=host, config=ServerConfig(), model_names=("kit",)
            )
            add_built_in_routes(host.routes)
            taken = tried(f"{title} can be served beside the built-in ones", _unserved(server))
            if not taken.passed:
                return [taken]
            app = make_app(server, on_one_loop=True)
            endpoints = host.routes.make(name, server).endpoints()
            answers = tried(f"{title} answers", asyncio.run(_silences(app, endpoints)))
            samples: Sequence[RouteSample] = samples_of(host.routes, name) or ()
            does = f"{title} does what its samples ask for"
            if not samples:
                missing = "samples= are not given, so that any answer but a failure is right"
                return [taken, answers, unclaimed(does, missing)]
            return [taken, answers, tried(does, asyncio.run(_refusals(app, samples)))]
        finally:
            engine.close()


def _unserved(server: ServerContext) -> Iterator[str]:
    make_app(server)
    yield from ()


async def _silences(app: Any, endpoints: Sequence[Endpoint]) -> list[str]:
    problems = []
    for endpoint in endpoints:
        path = _PARAMETER.sub("1", endpoint.path)
        body: Any = None if endpoint.method == "GET" else {}
        status, text, held = await _ask(app, endpoint.method, path, body)
        what = f"{endpoint.method} {path}"
        if not 200 <= status < 500:
            problems.append(f"{what} is answered by {status}: {text[:200]}")
        if held > HELD_SECONDS:
            problems.append(
                f"{what} holds its event loop for {held:.1f} s: no other route is answered"
            )
    return problems


async def _refusals(app: Any, samples: Sequence[RouteSample]) -> list[str]:
    problems = []
    for method, path, body in samples:
        status, text, _ = await _ask(app, method, path, body)
        if not 200 <= status < 300:
            problems.append(f"{method} {path} is answered by {status}: {text[:200]}")
    return problems


async def _ask(app: Any, method: str, path: str, body: Any) -> tuple[int, str, float]:
    """Status and text of the answer, 0 where none came, and how long the loop was held."""
    data = b"" if body is None else json.dumps(body).encode()
    messages: list[Any] = []
    requests = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        if requests:
            return requests.pop()
        await asyncio.Event().wait()  # the client stays
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    held = 0.0

    async def watch() -> None:
        nonlocal held
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            held = max(held, loop.time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        await asyncio.wait_for(app(_scope(method, path, data), receive, send), ANSWER_SECONDS)
    except TimeoutError:
        return 0, f"nothing came within {ANSWER_SECONDS:.0f} s", held
    finally:
        await asyncio.sleep(0.02)
        watching.cancel()
    status = next((m["status"] for m in messages if m["type"] == "http.response.start"), 0)
    parts = [m.get("body", b"") for m in messages if m["type"] == "http.response.body"]
    last = messages[-1] if messages else {}
    is_whole = last.get("type") == "http.response.body" and not last.get("more_body", False)
    text = b"".join(parts).decode(errors="replace") if is_whole else "the answer has no end"
    return (status if is_whole else 0), text, held


def _scope(method: str, path: str, data: bytes) -> dict[str, Any]:
    headers = [(b"host", b"localhost")]
    if data:
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
        ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
