"""Chat templates that requests bring: what they may take, and that nobody else waits for them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from octavo import AsyncLLM
from octavo.config.server import AccessConfig, ServerConfig
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SHOWS = "{{ messages[0].content }}"
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    llm = AsyncLLM("octavo/tiny", engine_process=False, num_threads=1, max_model_len=256)
    add_built_in_routes(llm.host.routes)
    yield llm
    llm.close()


@pytest.fixture
async def http(engine: AsyncLLM) -> AsyncIterator[httpx.AsyncClient]:
    config = ServerConfig(access=AccessConfig(trust_request_chat_template=True))
    context = ServerContext(engine=engine, host=engine.host, config=config, model_names=("m",))
    transport = httpx.ASGITransport(make_app(context))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", timeout=120
    ) as client:
        yield client


def body(template: str, **more: object) -> dict[str, object]:
    return {"messages": HELLO, "max_tokens": 1, "chat_template": template, **more}


def running_copies() -> int:
    """Processes that run a template now: children of those that this one has started."""
    parents = dict(processes())
    children = {
        pid
        for pid, parent in parents.items()
        if parent == os.getpid() and "template_child" in command(pid)
    }
    return sum(parent in children for parent in parents.values())


def processes() -> Iterator[tuple[int, int]]:
    """Each and its parent."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            yield int(each.name), int((each / "stat").read_text().rpartition(")")[2].split()[1])


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


async def test_a_request_s_template_writes_its_prompt(http) -> None:
    wish = body(SHOWS + " there", return_token_ids=True)
    answer = (await http.post(CHAT, json=wish)).json()
    spelled = await http.post("/detokenize", json={"tokens": answer["prompt_token_ids"]})
    assert spelled.json()["prompt"] == "Hello there"
    wish = {"messages": HELLO, "chat_template": SHOWS + " there"}
    assert (await http.post("/tokenize", json=wish)).json()["tokens"] == answer["prompt_token_ids"]
    wish = body(SHOWS + "{{ reasoning_effort }}", reasoning_effort="low", return_token_ids=True)
    answer = (await http.post(CHAT, json=wish)).json()
    spelled = await http.post("/detokenize", json={"tokens": answer["prompt_token_ids"]})
    assert spelled.json()["prompt"] == "Hellolow"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (SHOWS + LOOPS, "too slow"),
        (SHOWS + "{{ 'a' * 9999999999 }}", "MemoryError"),
        (SHOWS + "{{ raise_exception('never') }}", "never"),
        ("{% if %}", "no valid Jinja"),
        ("hello", "shows nothing of the messages"),
    ],
)
async def test_a_template_that_fails_is_its_client_s_fault(http, template, problem) -> None:
    for path in (CHAT, "/tokenize"):
        wish = body(template) if path == CHAT else {"messages": HELLO, "chat_template": template}
        reply = await http.post(path, json=wish)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert problem in error["message"]
        assert error["param"] in ("chat_template", "messages")


async def test_others_do_not_wait_and_nothing_goes_on_for_long(http) -> None:
    bombs = [
        asyncio.create_task(http.post(CHAT, json=body(f"{SHOWS}{{# {n} #}}{LOOPS}")))
        for n in range(6)
    ]
    while not running_copies():
        await asyncio.sleep(0.02)
    begin = time.monotonic()
    assert (await http.get("/health")).status_code == 200
    assert time.monotonic() - begin < 5
    reply = await http.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
    assert reply.status_code == 200
    # The six take two places of a second each, beside whatever else this machine does.
    assert not all(bomb.done() for bomb in bombs)
    for bomb in bombs:
        bomb.cancel()
    await asyncio.gather(*bombs, return_exceptions=True)
    until = time.monotonic() + 60
    while running_copies() and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert not running_copies()
