"""Answers of /v1/responses that are made in the background: polled, streamed, cancelled."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from octavo.server.apis.responses.runs import BackgroundRun, BackgroundRuns
from octavo.server.apis.responses.store import ResponseStore
from octavo.server.apis.responses.tools import ResponseTools
from octavo.server.apis.responses.turn import Turn
from octavo.server.http.boundary import Gate
from server_in_process import MODEL, clients

ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
LONG: dict[str, Any] = {
    "model": MODEL,
    "max_output_tokens": 900,
    "extra_body": {"ignore_eos": True},
}


async def ended(client: openai.AsyncOpenAI, id: str) -> Response:
    while (shown := await client.responses.retrieve(id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0.02)
    return shown


async def num_inside(client: openai.AsyncOpenAI) -> int:
    load = await client.get("http://octavo/load", cast_to=httpx.Response)
    return load.json()["server_load"]


async def events_of(stream: openai.AsyncStream[ResponseStreamEvent]) -> list[Any]:
    events = [event async for event in stream]
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict(), strict=True)
    return events


async def test_an_answer_is_polled_until_it_is_that_of_the_foreground(engine) -> None:
    (client,) = clients(engine)
    asked = await client.responses.create(input="Hello", background=True, **ASKED)
    assert (asked.status, asked.background, asked.output) == ("queued", True, [])
    made = await ended(client, asked.id)
    wanted = await client.responses.create(input="Hello", **ASKED)
    assert (made.status, made.output_text) == (wanted.status, wanted.output_text)
    assert made.usage.output_tokens == wanted.usage.output_tokens
    after = await client.responses.create(input="a", previous_response_id=asked.id, **ASKED)
    assert after.usage.input_tokens > made.usage.input_tokens


async def test_events_can_be_read_again_from_any_number_by_any_worker(engine, tmp_path) -> None:
    path = str(tmp_path / "store")
    (client,), (other,) = (clients(engine, responses_store=path) for _ in range(2))
    asked: dict[str, Any] = {**ASKED, "input": "Hello", "background": True, "stream": True}
    events = await events_of(await client.responses.create(**asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "queued", "in_progress", "output_item.added"]
    id = events[0].response.id
    shown = await other.responses.retrieve(id)
    assert events[-1].response.to_dict() == shown.to_dict()
    for number in (-1, 0, 3, len(events) - 2, len(events) - 1, 500):
        more = await other.responses.retrieve(id, stream=True, starting_after=number)
        assert await events_of(more) == events[number + 1 :]


async def test_an_answer_without_events_has_no_stream(engine) -> None:
    (client,) = clients(engine)
    made = await client.responses.create(input="Hello", **ASKED)
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.retrieve(made.id, stream=True)
    assert raised.value.param == "stream"
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_another_worker_ends_a_run(engine, tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "store")
    (client,), (other,) = (clients(engine, responses_store=path) for _ in range(2))
    asked = await client.responses.create(input="Hello", background=True, **LONG)
    with pytest.raises(openai.BadRequestError, match="not complete yet"):
        await client.responses.create(input="a", previous_response_id=asked.id, **ASKED)
    if way == "cancel":
        gone = await other.responses.cancel(asked.id)
        assert gone.status == "cancelled"
    else:
        await other.responses.delete(asked.id)
    while await num_inside(client) > 1:  # this very request
        await asyncio.sleep(0.02)
    if way == "cancel":
        assert (await client.responses.retrieve(asked.id)).status == "cancelled"
        assert (await client.responses.cancel(asked.id)).status == "cancelled"


async def test_what_cannot_be_answered_fails(engine) -> None:
    (client,) = clients(engine)
    asked = await client.responses.create(input="a " * 5000, background=True, **ASKED)
    made = await ended(client, asked.id)
    assert made.status == "failed"
    assert "context" in made.error.message
    asked_so: dict[str, Any] = {**ASKED, "input": "a " * 5000, "background": True}
    events = await events_of(await client.responses.create(**asked_so, stream=True))
    assert [event.type for event in events][-1] == "response.failed"
    Response.model_validate(events[-1].response.to_dict(), strict=True)


async def test_an_answer_whose_process_has_ended_has_failed(engine, tmp_path: Path) -> None:
    path = tmp_path / "store"
    (client,) = clients(engine, responses_store=str(path))
    asked = await client.responses.create(input="Hello", background=True, **ASKED)
    await ended(client, asked.id)
    with sqlite3.connect(path) as database:  # as a process leaves it that is killed
        database.execute("UPDATE responses SET alive = 1, runner = 'x'")
    assert (await client.responses.retrieve(asked.id)).status == "failed"


async def test_an_answer_that_cannot_be_written_down_is_not_kept_alive_by_others(tmp_path) -> None:
    store = ResponseStore(str(tmp_path / "store"), max_responses=9, max_bytes=2**20)
    runs = BackgroundRuns(store, Gate())
    has_failed, may_end = asyncio.Event(), asyncio.Event()

    async def fails(run: BackgroundRun) -> None:
        has_failed.set()
        raise sqlite3.OperationalError("the disk is full")

    async def waits(run: BackgroundRun) -> None:
        await may_end.wait()

    turn = Turn(owner="", items=[], history=None, messages=[], tools=ResponseTools())
    for id, work in (("a", fails), ("b", waits)):
        await runs.start(turn, json.dumps({"id": id}).encode(), streams=False, work=work)
    await has_failed.wait()

    def alive(database: sqlite3.Connection) -> list[float]:
        return [row[0] for row in database.execute("SELECT alive FROM responses ORDER BY number")]

    def set_back(database: sqlite3.Connection) -> None:
        database.execute("UPDATE responses SET alive = 1")

    await store.write(set_back)
    while (await store.read(alive))[1] == 1:
        await asyncio.sleep(0.02)
    assert (await store.read(alive))[0] == 1
    may_end.set()


async def test_the_second_of_two_answers_with_one_id_is_a_conflict(engine) -> None:
    (client,) = clients(engine)
    named = {**LONG, "extra_body": {"ignore_eos": True, "request_id": "twice"}}
    first = await client.responses.create(input="Hello", background=True, **named)
    with pytest.raises(openai.ConflictError) as raised:
        await client.responses.create(input="Hello", background=True, **named)
    assert raised.value.param == "request_id"
    assert (await client.responses.retrieve(first.id)).status in ("queued", "in_progress")
    assert (await client.responses.cancel(first.id)).status == "cancelled"
