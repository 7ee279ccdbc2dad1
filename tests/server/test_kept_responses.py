"""Answers of /v1/responses that are kept: shown, gone on from, deleted, each its key's alone."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.pagination import AsyncCursorPage
from openai.types.responses import Response, ResponseItem
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import TypeAdapter

from octavo.config.server import LimitConfig
from octavo.frontend.async_llm import AsyncLLM
from server_in_process import MODEL, clients

GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}


@pytest.fixture
def client(engine: AsyncLLM) -> openai.AsyncOpenAI:
    return clients(engine)[0]


async def items_of(client: openai.AsyncOpenAI, id: str, **page: Any) -> list[dict[str, Any]]:
    """The items that it answers; each is one of the package's types."""
    listed: AsyncCursorPage[Any] = await client.responses.input_items.list(id, **page)
    data = [item.to_dict() for item in listed.data]
    TypeAdapter(list[ResponseItem]).validate_python(data)
    return data


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_shown_as_it_was_given(client, stream) -> None:
    if stream:
        events = [e async for e in await client.responses.create(input="Hi", stream=True, **GREEDY)]
        given = events[-1].response
    else:
        given = await client.responses.create(input="Hi", **GREEDY)
    shown = await client.responses.retrieve(given.id)
    assert shown.to_dict() == given.to_dict()
    assert shown.store is True
    Response.model_validate(shown.to_dict(), strict=True)


async def test_a_turn_reads_what_the_whole_conversation_would_without_old_instructions(
    client,
) -> None:
    first = await client.responses.create(input="Hello", instructions="Be brief.", **GREEDY)
    second = await client.responses.create(
        input="What is the capital of France?", previous_response_id=first.id, **GREEDY
    )
    again = [{"type": "input_text", "text": "And of Spain?"}]
    third: dict[str, Any] = {"instructions": "Be kind.", **GREEDY}
    went_on = await client.responses.create(
        input=[{"role": "user", "content": again}], previous_response_id=second.id, **third
    )
    whole = [
        {"role": "user", "content": "Hello"},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "What is the capital of France?"},
        *(item.to_dict() for item in second.output),
        {"role": "user", "content": again},
    ]
    sent = await client.responses.create(input=whole, **third)
    assert went_on.usage.input_tokens == sent.usage.input_tokens
    assert went_on.output_text == sent.output_text
    assert went_on.previous_response_id == second.id
    counted = await client.responses.input_tokens.count(
        model=MODEL, input="And of Spain?", previous_response_id=second.id, instructions="Be kind."
    )
    InputTokenCountResponse.model_validate(counted.to_dict(), strict=True)
    assert counted.input_tokens == sent.usage.input_tokens


async def test_a_tools_result_answers_a_call_of_the_turn_before(client) -> None:
    properties = {"city": {"type": "string", "maxLength": 8}}
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    tools: Any = [{"type": "function", "name": "weather", "parameters": schema}]
    asked: dict[str, Any] = {**GREEDY, "max_output_tokens": 60, "tools": tools}
    called = await client.responses.create(input="Hi", tool_choice="required", **asked)
    (call,) = called.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = await client.responses.create(input=[result], previous_response_id=called.id, **asked)
    whole = [{"role": "user", "content": "Hi"}, call.to_dict(), result]
    sent = await client.responses.create(input=whole, **asked)
    assert after.output_text == sent.output_text != ""
    assert after.usage.input_tokens == sent.usage.input_tokens


async def test_an_item_that_is_referred_to_is_read(client) -> None:
    first = await client.responses.create(input="Hello", **GREEDY)
    rest = {"role": "user", "content": "Thanks"}
    begin = {"role": "user", "content": "Hello"}
    refers = [begin, {"type": "item_reference", "id": first.output[0].id}, rest]
    whole = [begin, first.output[0].to_dict(), rest]
    counts = [
        (await client.responses.input_tokens.count(model=MODEL, input=items)).input_tokens
        for items in (refers, whole, [begin, rest])
    ]
    assert counts[0] == counts[1] > counts[2]


async def test_references_are_bounded_in_number_and_by_what_they_stand_for(engine) -> None:
    limits = LimitConfig(max_body_mib=0.3)
    (client,) = clients(engine, limits=limits)
    first = await client.responses.create(input="Hello", **GREEDY)
    reference: Any = {"id": first.output[0].id}
    for count, told in (4097, "at most 4096"), (2_000, "more than 314572 bytes"):
        with pytest.raises(openai.BadRequestError, match=told):
            await client.responses.create(input=[reference] * count, **GREEDY)


async def test_input_items_are_paged_in_both_orders(client) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [], "id": "rs_1"},
        {"role": "assistant", "content": "b"},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "e"}]},
    ]
    made = await client.responses.create(input=given, **GREEDY)
    every = await items_of(client, made.id, order="asc")
    assert [item["type"] for item in every] == [item.get("type", "message") for item in given]
    assert every[1]["id"] == "rs_1"
    assert await items_of(client, made.id) == every[::-1]
    assert await items_of(client, made.id, order="asc", limit=2) == every[:2]
    assert await items_of(client, made.id, limit=2, after=every[3]["id"]) == every[2:0:-1]
    paged = [item async for item in client.responses.input_items.list(made.id, limit=1)]
    assert [item.id for item in paged] == [item["id"] for item in every[::-1]]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/input_items?order=up", "order"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("?stream=perhaps", "stream"),
        ("?starting_after=-2", "starting_after"),
        (f"?stream=true&starting_after={10**30}", "starting_after"),
    ],
)
async def test_queries_out_of_range_are_named(client, path, param) -> None:
    made = await client.responses.create(input="Hi", **GREEDY)
    with pytest.raises(openai.BadRequestError) as raised:
        await client.get(f"/responses/{made.id}{path}", cast_to=object)
    assert raised.value.param == param


async def test_what_is_deleted_or_was_not_stored_is_not_there(client) -> None:
    stored = await client.responses.create(input="Hello", **GREEDY)
    after = await client.responses.create(input="a", previous_response_id=stored.id, **GREEDY)
    await client.responses.delete(stored.id)
    fleeting = await client.responses.create(input="Hello", store=False, **GREEDY)
    assert fleeting.store is False
    for id in (stored.id, fleeting.id, "resp_none"):
        for ask in (
            client.responses.retrieve,
            client.responses.input_items.list,
            client.responses.delete,
        ):
            with pytest.raises(openai.NotFoundError):
                await ask(id)
    for id in (stored.id, fleeting.id, after.id):  # the last one's begin is gone
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(input="b", previous_response_id=id, **GREEDY)
        assert raised.value.code == "previous_response_not_found"
        assert raised.value.param == "previous_response_id"


async def test_answers_belong_to_the_key_that_asked(engine) -> None:
    mine, yours = clients(engine, "key-a", "key-b")
    made = await mine.responses.create(input="Hello", **GREEDY)
    for ask in (yours.responses.retrieve, yours.responses.delete, yours.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    with pytest.raises(openai.BadRequestError):
        await yours.responses.create(input="b", previous_response_id=made.id, **GREEDY)
    refers = [{"type": "item_reference", "id": made.output[0].id}]
    with pytest.raises(openai.BadRequestError, match="not kept"):
        await yours.responses.create(input=refers, **GREEDY)
    own_id = {"extra_body": {"request_id": "same"}}
    ours = [await each.responses.create(input="a", **GREEDY, **own_id) for each in (mine, yours)]
    assert ours[0].id == ours[1].id
    await yours.responses.delete("resp_same")
    assert (await mine.responses.retrieve("resp_same")).created_at == ours[0].created_at
    assert (await mine.responses.retrieve(made.id)).id == made.id


async def test_a_file_keeps_answers_beyond_the_servers_end(engine, tmp_path) -> None:
    path = str(tmp_path / "answers")
    (before,) = clients(engine, "key", responses_store=path)
    made = await before.responses.create(input="Hello", **GREEDY)
    (after,) = clients(engine, "key", responses_store=path)
    assert (await after.responses.retrieve(made.id)).to_dict() == made.to_dict()
    went_on = await after.responses.create(input="a", previous_response_id=made.id, **GREEDY)
    assert (await before.responses.retrieve(went_on.id)).id == went_on.id
    assert b"key" not in (tmp_path / "answers").read_bytes()


async def test_a_server_that_keeps_nothing_says_so(engine) -> None:
    (client,) = clients(engine, max_stored_responses=0)
    made = await client.responses.create(input="Hello", **GREEDY)
    assert made.store is False
    asked = await client.responses.create(input="Hello", store=True, **GREEDY)
    assert asked.warnings == ["store has no effect: this server keeps no responses"]
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="max-stored-responses"):
        await client.responses.create(input="b", previous_response_id=made.id, **GREEDY)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_could_not_be_kept_says_so(engine, stream) -> None:
    (client,) = clients(engine, max_stored_responses_mib=0.01)  # less than an empty database
    asked: dict[str, Any] = {"input": "Hello", "store": True, **GREEDY}
    if stream:
        events = [event async for event in await client.responses.create(stream=True, **asked)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        made = events[-1].response
    else:
        made = await client.responses.create(**asked)
    assert made.store is False
    assert made.warnings == ["store has no effect: the answer could not be kept"]
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
