"""Tool calls over HTTP, as the `openai` package makes and reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from live_server import running_server

MODEL = "octavo/tiny"


def tool(name: str, description: str, *, strict: bool | None = None, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function | ({"strict": strict} if strict else {})}


TEXT = {"type": "string"}
WEATHER = tool("get_weather", "Get the weather of a city.", city=TEXT)
TIME = tool("get_time", "Get the time in a city.", city=TEXT)
ADD = tool("add_numbers", "Add two numbers.", a={"type": "integer"}, b={"type": "integer"})
TOOLS = [WEATHER, TIME, ADD]
NAMED = {"type": "function", "function": {"name": "get_time"}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def ask(client: OpenAI, **options: Any) -> ChatCompletion:
    given = {"messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 150}
    return client.chat.completions.create(model=MODEL, **given | options)


def streamed(client: OpenAI, **options: Any) -> ChatCompletion:
    """The same, put together from pieces by the package itself."""
    given = {"messages": QUESTION, "tools": TOOLS, "temperature": 0, "max_tokens": 150}
    with client.chat.completions.stream(model=MODEL, **given | options) as events:
        return events.get_final_completion()


def calls(completion: ChatCompletion, index: int = 0) -> list[tuple[str, Any]]:
    """Names and arguments, which their tools' schemas admit."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in TOOLS}
    made = []
    for call in completion.choices[index].message.tool_calls or []:
        assert call.type == "function"
        assert call.id
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, schemas[call.function.name])
        made.append((call.function.name, arguments))
    return made


def test_the_model_calls_a_tool_when_it_may(client: OpenAI) -> None:
    completion = ask(client)
    assert calls(completion) == [("get_weather", {"city": "Paris"})]
    choice = completion.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 5


def test_with_none_the_model_sees_no_tools(client: OpenAI) -> None:
    completion = ask(client, tool_choice="none")
    without = ask(client, tools=openai.NOT_GIVEN)
    assert completion.choices[0].message == without.choices[0].message
    assert completion.choices[0].message.tool_calls is None
    assert completion.usage.prompt_tokens == without.usage.prompt_tokens


def test_a_required_call_is_made_whatever_was_said(client: OpenAI) -> None:
    hello = [{"role": "user", "content": "Hello!"}]
    completion = ask(client, messages=hello, tool_choice="required", temperature=1, n=6, seed=1)
    for index, choice in enumerate(completion.choices):
        if choice.finish_reason != "length":
            assert choice.finish_reason == "tool_calls"
            assert calls(completion, index)


def test_a_named_function_is_called_once_and_ends_with_stop(client: OpenAI) -> None:
    completion = ask(client, tool_choice=NAMED)
    assert calls(completion) == [("get_time", {"city": "Paris"})]
    assert completion.choices[0].finish_reason == "stop"
    assert streamed(client, tool_choice=NAMED).choices[0].finish_reason == "stop"


def test_a_call_cut_short_ends_with_length(client: OpenAI) -> None:
    completion = ask(client, tool_choice="required", max_tokens=14)
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize("choice", ["auto", "required", "none", NAMED])
def test_streams_put_together_are_the_answer_in_one_piece(client: OpenAI, choice) -> None:
    options = {"tool_choice": choice, "seed": 3, "temperature": 1, "n": 2}
    whole, pieces = ask(client, **options), streamed(client, **options)
    for one, other in zip(whole.choices, pieces.choices, strict=True):
        assert one.finish_reason == other.finish_reason
        assert (one.message.content or "") == (other.message.content or "")
        expected = [call.function.model_dump() for call in one.message.tool_calls or []]
        got = [
            {"name": call.function.name, "arguments": call.function.arguments}
            for call in other.message.tool_calls or []
        ]
        assert got == expected


def test_the_name_comes_once_and_arguments_in_pieces(client: OpenAI) -> None:
    events = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in events]
    assert (deltas[0].role, deltas[0].content) == ("assistant", None)
    pieces = [call for delta in deltas for call in delta.tool_calls or []]
    assert {call.index for call in pieces} == {0}
    first, *rest = pieces
    assert (first.type, first.function.name, first.function.arguments) == (
        "function",
        "get_weather",
        "",
    )
    assert first.id
    assert len(rest) > 1
    assert all((c.id, c.type, c.function.name) == (None, None, None) for c in rest)
    assert json.loads("".join(c.function.arguments for c in rest)) == {"city": "Paris"}


def test_several_calls_have_an_index_each(client: OpenAI) -> None:
    longer = {"tool_choice": "required", "max_tokens": 250, "extra_body": {"min_tokens": 40}}
    completion = ask(client, **longer)
    made = calls(completion)
    assert len(made) > 1
    assert len({call.id for call in completion.choices[0].message.tool_calls or []}) == len(made)
    assert calls(streamed(client, **longer)) == made
    pieces = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, stream=True, **longer
    )
    named = [c for e in pieces for c in e.choices[0].delta.tool_calls or [] if c.function.name]
    assert [call.index for call in named] == [*range(len(made))]


def test_a_result_goes_back_and_is_answered(client: OpenAI) -> None:
    first = ask(client).choices[0].message
    assert first.tool_calls
    messages = [
        *QUESTION,
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "18 degrees, sunny"},
    ]
    answer = ask(client, messages=messages)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    shorter = ask(client, messages=QUESTION)
    assert answer.usage is not None
    assert shorter.usage is not None
    assert answer.usage.prompt_tokens > shorter.usage.prompt_tokens + 20


def test_strict_tools_and_an_answer_of_a_certain_form_go_together(client: OpenAI) -> None:
    strict = tool("get_weather", "Get the weather of a city.", strict=True, city=TEXT)
    assert calls(ask(client, tools=[strict, TIME])) == [("get_weather", {"city": "Paris"})]


def test_logprobs_and_ids_cover_every_token_of_a_call(client: OpenAI) -> None:
    options = {"logprobs": True, "top_logprobs": 1, "extra_body": {"return_token_ids": True}}
    whole = ask(client, **options)
    assert whole.usage is not None
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    events = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=TOOLS, temperature=0, stream=True, **options
    )
    chunks = [chunk.choices[0] for chunk in events]
    tokens = [t.token for c in chunks if c.logprobs for t in c.logprobs.content]
    assert tokens == [t.token for t in whole.choices[0].logprobs.content]
    ids = [i for c in chunks for i in (c.model_extra or {}).get("token_ids") or []]
    assert ids == (whole.choices[0].model_extra or {})["token_ids"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_more_tools_than_openai_takes_are_taken(http: httpx.Client, choice: str) -> None:
    tools = [tool(f"server{i // 20}__f{i}", "") for i in range(300)]
    body = {"messages": QUESTION, "tools": tools, "tool_choice": choice, "max_tokens": 1}
    reply = http.post("/tokenize", json={"messages": QUESTION, "tools": tools})
    assert reply.status_code == 200, reply.text
    room = http.get("/v1/models").json()["data"][0]["max_model_len"]
    reply = http.post("/v1/chat/completions", json=body)  # refused for its length alone
    assert reply.status_code == 400
    assert f"{room}" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": "a"}, "tools"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"type": "customs", "function": {"name": "f"}}]}, "tools"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f"}}], "tool_choice": "required"},
            "tool_choice",
        ),
        ({"tools": [tool("no good", "")]}, "tools"),
        ({"tools": [WEATHER] * 2}, "tools"),
        ({"tools": [tool(f"f{i}", "") for i in range(4097)]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {**NAMED, "mode": "auto"}}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": "required", "guided_regex": "a"},
            "guided_regex",
        ),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {
                "tools": [tool("f", "", x={"$dynamicRef": "#nowhere"})],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_400_that_names_the_field(http: httpx.Client, body, field, stream):
    reply = http.post("/v1/chat/completions", json={"messages": QUESTION, "stream": stream, **body})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == field, reply.text


def test_calls_that_must_be_come_before_the_form_of_content(client: OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    completion = ask(client, tool_choice="required", response_format=form)
    assert completion.choices[0].message.content is None
    assert calls(completion) == calls(ask(client, tool_choice="required"))


def parse(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json=body)
    return reply.json() if reply.status_code == 200 else reply.json()["error"]


def test_a_text_is_taken_apart_on_request(http: httpx.Client) -> None:
    text = 'So: <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    own = parse(http, "/parse_tool_calls", text=text)
    assert own["content"] == "So: "
    assert [call["function"] for call in own["tool_calls"]] == [
        {"name": "f", "arguments": '{"x": 1}'}
    ]
    other = parse(http, "/parse_tool_calls", text="[f(x='1')]", parser="pythonic")
    assert other["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "1"}'}
    typed = parse(
        http,
        "/parse_tool_calls",
        text="<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        parser="qwen3_coder",
        tools=[tool("f", "", x={"type": "string"})],
    )
    assert typed["tool_calls"][0]["function"]["arguments"] == '{"x": "1"}'
    thought = parse(http, "/separate_reasoning", text="<think>a</think>b", parser="qwen3")
    assert thought == {"reasoning": "a", "content": "b"}


def test_parsers_that_are_not_there_are_named(http: httpx.Client) -> None:
    wrong = parse(http, "/parse_tool_calls", text="a", parser="hermez")
    assert wrong["param"] == "parser"
    assert "hermes" in wrong["message"]
    missing = parse(http, "/separate_reasoning", text="a")
    assert missing["param"] == "parser"
    assert "qwen3" in missing["message"]


def test_tokenize_counts_the_tools_too(http: httpx.Client) -> None:
    with_tools = parse(http, "/tokenize", messages=QUESTION, tools=TOOLS)
    without = parse(http, "/tokenize", messages=QUESTION)
    assert with_tools["count"] > without["count"] + 20


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"x": NaN, "y": [-Infinity, 1e999]}', {"x": None, "y": [None, None]}),
        ('{"x":', {"INVALID_JSON": '{"x":'}),
        ('{"x": 1.50}', '{"x": 1.50}'),
    ],
)
def test_arguments_of_a_text_are_json_whatever_the_model_wrote(http, written, read) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {written}' + "}</tool_call>" * ("}" in written)
    (call,) = parse(http, "/parse_tool_calls", text=text, parser="hermes")["tool_calls"]
    arguments = call["function"]["arguments"]
    assert arguments == read if isinstance(read, str) else json.loads(arguments) == read


VLLMS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.mark.slow
def test_reasoning_has_fields_items_and_blocks_of_its_own(tmp_path: Path) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "<think>The city"}]
    body = {"messages": begun, "temperature": 0, "max_tokens": 8}
    chat = {**body, "continue_final_message": True}
    with running_server(tmp_path / "log", *VLLMS) as server, server.client() as http:
        whole = http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
        assert whole["content"] is None
        assert whole["reasoning"] == whole["reasoning_content"] != ""
        without = http.post("/v1/chat/completions", json={**chat, "include_reasoning": False})
        assert (
            not {"reasoning", "reasoning_content"} & without.json()["choices"][0]["message"].keys()
        )
        events = http.post("/v1/chat/completions", json={**chat, "stream": True}).text.split("\n\n")
        deltas = [
            json.loads(e[6:])["choices"][0]["delta"] for e in events if e.startswith("data: {")
        ]
        assert "".join(d.get("reasoning", "") for d in deltas) == whole["reasoning"]
        assert not any(d.get("content") for d in deltas)
        (block,) = http.post("/v1/messages", json=body).json()["content"]
        assert block == {"type": "thinking", "thinking": whole["reasoning"], "signature": ""}
        thinking = {**body, "thinking": {"type": "adaptive"}}
        assert http.post("/v1/messages", json=thinking).json()["content"] == [block]
        thought = {"type": "reasoning", "summary": [], "content": [], "id": "rs_1"}
        answer = http.post(
            "/v1/responses", json={"input": [*QUESTION, thought], "max_output_tokens": 8}
        )
        assert answer.status_code == 200, answer.text
        assert http.get("/capabilities").json()["features"]["reasoning"]["on"]
        separated = parse(http, "/separate_reasoning", text="<think>a</think>b")
        assert separated == {"reasoning": "a", "content": "b"}
