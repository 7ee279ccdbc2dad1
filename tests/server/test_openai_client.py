"""OpenAI's own package, unchanged, against the server."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from unittest.mock import MagicMock

import httpx
import openai
import pytest

from octavo.config.server import ServerConfig
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.http.boundary import DRAINING, Boundary, Gate
from octavo.server.http.keys import Keys
from octavo_registry import PluginHost

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
MODEL = "octavo/tiny"


def chat(client: openai.OpenAI, **more):
    given = {"model": MODEL, "messages": QUESTION, "temperature": 0, **more}
    return client.chat.completions.create(**given)


def test_models_are_listed_and_shown(client) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


def test_a_chat_is_answered(client) -> None:
    answer = chat(client)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer._request_id
    assert answer.id == f"chatcmpl-{answer._request_id}"


def test_an_answer_can_be_sent_back(client) -> None:
    first = chat(client).choices[0].message
    more = [*QUESTION, first, {"role": "user", "content": "Thanks"}]
    assert chat(client, messages=more, max_tokens=5).choices[0].message.content
    dumped = [*QUESTION, first.model_dump(), {"role": "user", "content": "Thanks"}]
    assert chat(client, messages=dumped, max_tokens=5).choices[0].message.content


def test_a_chat_streams_with_usage(client) -> None:
    events = list(chat(client, stream=True, stream_options={"include_usage": True}))
    texts = [event.choices[0].delta.content or "" for event in events[:-1]]
    assert "".join(texts) == ANSWER
    assert events[0].choices[0].delta.role == "assistant"
    assert [event.usage for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == chat(client).usage.completion_tokens
    assert events[-2].choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_tokens_chosen(client) -> None:
    (choice,) = chat(client, logprobs=True, top_logprobs=3).choices
    content = choice.logprobs.content
    assert "".join(token.token for token in content).startswith(ANSWER)
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # at temperature 0
        assert token.logprob <= 0
        assert bytes(token.bytes).decode() == token.token


def test_a_seed_repeats_n_answers(client) -> None:
    def texts() -> list[str]:
        made = chat(client, n=3, seed=7, temperature=9, max_tokens=12).choices
        assert [choice.index for choice in made] == [0, 1, 2]
        return [choice.message.content for choice in made]

    first = texts()
    assert first == texts()
    assert len(set(first)) > 1


def test_a_stop_string_ends_an_answer_before_it(client) -> None:
    (choice,) = chat(client, stop=[" France", "x"]).choices
    assert (choice.message.content, choice.finish_reason) == ("The capital of", "stop")
    assert choice.stop_reason == " France"


def test_max_completion_tokens_bounds_an_answer(client) -> None:
    answer = chat(client, max_completion_tokens=3)
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)


def test_vllms_fields_go_through_extra_body(client) -> None:
    more = {"top_k": 1, "min_tokens": 2, "return_token_ids": True, "request_id": "named"}
    answer = chat(client, temperature=1.0, extra_body=more)
    assert answer.choices[0].message.content == ANSWER
    assert answer.id == "chatcmpl-named"
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens


@pytest.mark.parametrize(("asked", "kept"), [(-1, 1023), (7, 7), (1023, 1023)])
def test_a_list_of_ids_longer_than_the_context_is_cut_as_a_text_is(client, asked, kept) -> None:
    more = {"truncate_prompt_tokens": asked, "return_token_ids": True}
    ids = [5 + number % 9 for number in range(1500)]
    made = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, extra_body=more)
    assert made.usage.prompt_tokens == kept
    assert made.choices[0].prompt_token_ids == ids[-kept:]


def test_completions_take_one_prompt_or_many(client) -> None:
    def create(prompt, **more):
        return client.completions.create(
            model=MODEL, prompt=prompt, temperature=0, max_tokens=4, **more
        )

    one = create("The capital of France is").choices[0].text
    many = create(["The capital of France is", "Hello"], n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in many.choices[:2]] == [one, one]
    echoed = create("The capital of France is", echo=True, logprobs=2).choices[0]
    assert echoed.text == "The capital of France is" + one
    assert echoed.logprobs.token_logprobs[0] is None
    assert all(map(math.isfinite, echoed.logprobs.token_logprobs[1:]))
    streamed = create("The capital of France is", stream=True)
    assert "".join(event.choices[0].text for event in streamed) == one


@pytest.mark.parametrize(
    ("more", "error", "param"),
    [
        ({"temperature": 7e3}, openai.BadRequestError, "temperature"),
        ({"model": "no/such"}, openai.NotFoundError, "model"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, openai.BadRequestError,
         "tools"),
        ({"response_format": {"type": "yaml"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_packages_own(client, more, error, param, stream) -> None:
    with pytest.raises(error) as raised:
        chat(client, stream=stream, **more)
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"
    assert raised.value.request_id


def test_a_response_is_made_of_text(client) -> None:
    answer = client.responses.create(
        model=MODEL, input="What is the capital of France?", temperature=0, metadata={"a": "b"}
    )
    assert (answer.output_text, answer.status, answer.error) == (ANSWER, "completed", None)
    assert answer.metadata == {"a": "b"}
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.output[0].role == "assistant"
    assert answer.store is True


def test_a_response_goes_on_from_the_output_of_the_last(client) -> None:
    first = client.responses.create(model=MODEL, input="Hello", temperature=0)
    items = [
        {"role": "user", "content": "Hello"},
        *first.output,
        {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
    ]
    asked = {"model": MODEL, "input": items, "temperature": 0, "instructions": "Be brief."}
    answer = client.responses.create(**asked, max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.instructions == "Be brief."
    assert answer.usage.output_tokens == 3


def test_a_response_streams_in_openais_order(client) -> None:
    asked = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == ANSWER
    with client.responses.stream(**asked) as stream:  # the package puts the pieces together
        assert stream.get_final_response().output_text == ANSWER


def test_logprobs_of_a_response_are_those_of_a_chat(client) -> None:
    included = ["message.output_text.logprobs"]
    asked = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
    answer = client.responses.create(**asked, include=included, top_logprobs=2)
    made = answer.output[0].content[0].logprobs
    wanted = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert wanted.pop().token == "<|im_end|>"  # no part of the item's text
    assert [(t.token, len(t.top_logprobs)) for t in made] == [(t.token, 2) for t in wanted]
    assert [t.logprob for t in made] == pytest.approx([t.logprob for t in wanted], abs=1e-4)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"text": {"format": {"type": "yaml"}}}, "text"),
        ({"reasoning": {"efort": "high"}}, "reasoning"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"id": "msg_1"}]}, "input"),
        ({"input": "a " * 5000}, "input"),
    ],
)
def test_what_a_response_cannot_be_is_refused_by_name(client, more, param) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": MODEL, "input": "Hello", **more})
    assert raised.value.param == param


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def locked_app(gate) -> Boundary:
    """A server of this process, which has no engine and asks for a key."""
    host = PluginHost.discover()
    add_built_in_routes(host.routes)
    no_engine: Any = MagicMock(max_model_len=1024)
    context = ServerContext(
        engine=no_engine, host=host, config=ServerConfig(), model_names=(MODEL,), gate=gate
    )
    return make_app(context, keys=Keys(("secret", "other")))


def locked_client(app: Boundary, key: str) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    return openai.AsyncOpenAI(
        base_url="http://octavo/v1", api_key=key, max_retries=0, http_client=http
    )


@pytest.mark.parametrize("key", ["wrong", "secret2", "secre", "Secret"])
async def test_a_wrong_key_is_an_authentication_error(locked_app, key) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        await locked_client(locked_app, key).models.list()
    assert (raised.value.code, raised.value.type) == ("invalid_api_key", "invalid_request_error")
    assert key not in str(raised.value.body)


@pytest.mark.parametrize("key", ["secret", "other"])
async def test_each_key_opens_what_asks_for_one(locked_app, key) -> None:
    with pytest.raises(openai.NotFoundError):
        await locked_client(locked_app, key).get("/no/such/path", cast_to=object)


async def test_anthropics_clients_get_their_shape_of_a_wrong_key(locked_app) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(locked_app)) as client:
        reply = await client.post("http://octavo/v1/messages", headers={"x-api-key": "wrong"})
        assert reply.status_code == 401
        assert reply.json()["type"] == "error"
        assert reply.json()["error"]["type"] == "authentication_error"
        opened = await client.post(
            "http://octavo/v1/messages", headers={"x-api-key": "secret"}, json={}
        )
        assert (opened.status_code, opened.json()["type"]) == (400, "error")


async def test_a_server_that_drains_is_an_internal_server_error(locked_app, gate) -> None:
    gate.closed = DRAINING
    with pytest.raises(openai.InternalServerError) as raised:
        await locked_client(locked_app, "secret").models.list()
    assert raised.value.status_code == 503
    assert raised.value.response.headers["retry-after"]


async def test_a_hundred_chats_at_once_are_answered_alike(server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

        async def one(number: int) -> str:
            asked = {"model": MODEL, "messages": QUESTION, "temperature": 0}
            if number % 2:
                made = await client.chat.completions.create(**asked)
                return made.choices[0].message.content
            events = await client.chat.completions.create(**asked, stream=True)
            return "".join([event.choices[0].delta.content or "" async for event in events])

        assert set(await asyncio.gather(*map(one, range(100)))) == {ANSWER}
