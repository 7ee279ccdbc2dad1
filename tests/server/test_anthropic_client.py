"""Anthropic's own package, unchanged, against the server."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
MODEL = "octavo/tiny"


@pytest.fixture(scope="module")
def client(server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def ask(client: anthropic.Anthropic, **more):
    return client.messages.create(
        **{"model": MODEL, "messages": QUESTION, "max_tokens": 50, "extra_body": GREEDY, **more}
    )


GREEDY = {"temperature": 0}


def test_a_message_is_answered(client) -> None:
    answer = ask(client)
    (block,) = answer.content
    assert (block.type, block.text) == ("text", ANSWER)
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == (
        "assistant",
        "end_turn",
        None,
    )
    assert answer.usage.output_tokens > 5
    assert answer.id == f"msg_{answer._request_id}"


def test_system_and_content_may_be_blocks(client) -> None:
    blocks = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    plain = ask(client, messages=[{"role": "user", "content": "Hi"}], system="Be kind.")
    system = [{"type": "text", "text": "Be kind."}]
    in_blocks = ask(client, messages=[{"role": "user", "content": blocks}], system=system)
    assert plain.content == in_blocks.content


def test_a_stop_sequence_is_reported(client) -> None:
    answer = ask(client, stop_sequences=[" France"])
    assert answer.content[0].text == "The capital of"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " France")


def test_max_tokens_ends_an_answer(client) -> None:
    answer = ask(client, max_tokens=3)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)


def test_an_answer_that_has_begun_is_continued(client) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    assert ask(client, messages=begun).content[0].text == " France is Paris."


def test_a_message_streams_in_anthropics_order(client) -> None:
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}  # the package leaves pings out
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events[2:-3]) == ANSWER
    assert events[-2].delta.stop_reason == "end_turn"


def test_the_package_puts_a_stream_together(client) -> None:
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 50, "extra_body": GREEDY}
    with client.messages.stream(**asked, stop_sequences=[" is"]) as stream:
        final = stream.get_final_message()
    assert final.content[0].text == "The capital of France"
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", " is")
    whole = ask(client, stop_sequences=[" is"])
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_tokens_are_counted_as_they_are_used(client) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be kind.")
    usage = ask(client, system="Be kind.", max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("more", "error", "kind", "word"),
    [
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"model": "no/such"}, anthropic.NotFoundError, "not_found_error", "no/such"),
        ({"tools": [{"name": "f g", "input_schema": {"type": "object"}}]},
         anthropic.BadRequestError, "invalid_request_error", "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": ""}}]}]},
         anthropic.BadRequestError, "invalid_request_error", "image"),
        ({"extra_body": {"tool": 1}}, anthropic.BadRequestError, "invalid_request_error",
         "'tools'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_packages_own(client, more, error, kind, word, stream) -> None:
    with pytest.raises(error) as raised:
        ask(client, stream=stream, **more)
    body = raised.value.body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert word in body["error"]["message"]


TOOLS = [
    {
        "name": name,
        "description": text,
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    for name, text in (
        ("get_weather", "Get the weather of a city."),
        ("get_time", "Get the time in a city."),
    )
]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_tool_is_used(client) -> None:
    answer = ask(client, messages=WEATHER, tools=TOOLS)
    (block,) = answer.content
    assert (block.type, block.name, block.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert block.id
    assert answer.stop_reason == "tool_use"
    none = ask(client, messages=WEATHER, tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in none.content] == ["text"]


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_time"}],
)
def test_a_tool_is_used_when_it_must(client, choice) -> None:
    answer = ask(client, tools=TOOLS, tool_choice=choice, max_tokens=150)
    assert [block.type for block in answer.content] == ["tool_use"]
    assert answer.content[0].name == choice.get("name", answer.content[0].name)
    assert answer.content[0].input.keys() == {"city"}


def test_a_use_streams_in_anthropics_order(client) -> None:
    asked = {"model": MODEL, "messages": WEATHER, "max_tokens": 100, "extra_body": GREEDY}
    events = list(client.messages.create(**asked, tools=TOOLS, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = events[1].content_block
    assert (start.type, start.name, start.input) == ("tool_use", "get_weather", {})
    assert len(events[2:-3]) > 1
    assert events[-2].delta.stop_reason == "tool_use"
    with client.messages.stream(**asked, tools=TOOLS) as stream:
        (block,) = stream.get_final_message().content
    assert block.input == {"city": "Paris"}


def test_a_result_goes_back_and_is_answered(client) -> None:
    use = ask(client, messages=WEATHER, tools=TOOLS).content
    result = {"type": "tool_result", "tool_use_id": use[0].id, "content": "18 degrees, sunny"}
    messages = [
        *WEATHER,
        {"role": "assistant", "content": use},
        {"role": "user", "content": [result]},
    ]
    answer = ask(client, messages=messages, tools=TOOLS)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "end_turn"
    count = client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS)
    usage = answer.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


async def test_many_messages_at_once_are_answered_alike(server) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client:

        async def one(number: int) -> str:
            return (await ask(client)).content[0].text

        assert set(await asyncio.gather(*map(one, range(32)))) == {ANSWER}
