"""What a client sees of a request that fails after its first piece, and how streams are merged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from octavo.config.server import ServerConfig
from octavo.errors import RequestFailedError
from octavo.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.params import SamplingParams
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.protocol.merging import merge_streams
from octavo_registry import PluginHost

HELLO = [{"role": "user", "content": "Hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
}
SECRET = "/root/weights of mine"


def output(text: str, number: int = 0) -> RequestOutput:
    piece = CompletionOutput(index=0, text=text, token_ids=[number])
    return RequestOutput(
        request_id="a",
        prompt="Hello",
        prompt_token_ids=[5],
        outputs=[piece],
        finished=False,
        metrics=RequestMetrics(0.0),
    )


async def failing(num_pieces: int) -> AsyncGenerator[RequestOutput, None]:
    for _ in range(num_pieces):
        yield output("Hi")
    raise RequestFailedError(SECRET)


async def post(path: str, num_pieces: int, **more: Any) -> httpx.Response:
    engine: Any = MagicMock(max_model_len=100)
    engine.config.model.max_logprobs = None
    engine.get_default_sampling_params.return_value = SamplingParams()
    engine.answer.return_value = engine.generate.return_value = failing(num_pieces)
    host = PluginHost.discover()
    add_built_in_routes(host.routes)
    context = ServerContext(engine=engine, host=host, config=ServerConfig(), model_names=("m",))
    transport = httpx.ASGITransport(make_app(context))
    async with httpx.AsyncClient(transport=transport, base_url="http://octavo") as client:
        return await client.post(path, json={**BODIES[path], **more})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_failure_before_the_first_piece_is_a_status(path, stream) -> None:
    reply = await post(path, 0, stream=stream)
    assert reply.status_code == 500
    kind = "api_error" if path == "/v1/messages" else "server_error"
    assert reply.json()["error"]["type"] == kind
    assert SECRET not in reply.text


@pytest.mark.parametrize("path", BODIES)
async def test_a_failure_after_it_is_the_last_event(path) -> None:
    reply = await post(path, 2, stream=True)
    assert reply.status_code == 200
    assert SECRET not in reply.text
    *_, last = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    event = json.loads(last)
    match path:
        case "/v1/responses":
            assert event["type"] == "response.failed"
            assert event["response"]["status"] == "failed"
            assert event["response"]["error"]["code"] == "server_error"
        case "/v1/messages":
            assert (event["type"], event["error"]["type"]) == ("error", "api_error")
            assert "event: error" in reply.text
        case _:
            assert event["error"]["type"] == "server_error"
            assert reply.text.endswith("data: [DONE]\n\n")


async def counted(
    count: int, closed: list[int], number: int
) -> AsyncGenerator[RequestOutput, None]:
    try:
        for each in range(count):
            await asyncio.sleep(0)
            yield output("", each)
    finally:
        closed.append(number)


@pytest.mark.parametrize("num_streams", [1, 2, 50])
async def test_merged_streams_keep_their_own_order(num_streams) -> None:
    closed: list[int] = []
    streams = [counted(number + 1, closed, number) for number in range(num_streams)]
    seen: dict[int, list[int]] = {number: [] for number in range(num_streams)}
    async for number, each in merge_streams(streams):
        seen[number] += each.outputs[0].token_ids
    assert seen == {number: list(range(number + 1)) for number in range(num_streams)}
    assert sorted(closed) == list(range(num_streams))


async def test_many_streams_do_not_all_begin_in_one_turn_of_the_event_loop() -> None:
    turn, begun = 0, set()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def stream() -> AsyncGenerator[RequestOutput, None]:
        begun.add(turn)
        yield output("")

    counting = asyncio.create_task(count_turns())
    assert len([each async for each in merge_streams([stream() for _ in range(50)])]) == 50
    counting.cancel()
    assert len(begun) == 50


async def test_the_first_failure_closes_the_other_streams() -> None:
    closed: list[int] = []
    streams = [counted(10**6, closed, 0), failing(3), counted(10**6, closed, 2)]
    seen = []

    async def read() -> None:
        async for number, _ in merge_streams(streams):
            seen.append(number)

    with pytest.raises(RequestFailedError):
        await read()
    assert sorted(closed) == [0, 2]
    assert len(seen) < 30  # each stream had its turn


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_a_reader_that_leaves_closes_all_streams(num_streams) -> None:
    closed: list[int] = []
    merged = merge_streams([counted(10**6, closed, number) for number in range(num_streams)])
    async for _ in merged:
        break
    await merged.aclose()
    deadline = time.monotonic() + 60
    while len(closed) < num_streams and time.monotonic() < deadline:
        await asyncio.sleep(0)
    assert sorted(closed) == list(range(num_streams))
