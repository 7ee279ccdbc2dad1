"""Tools and reasoning on /v1/responses, as the `openai` package makes and reads them."""

from __future__ import annotations

import os
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from live_server import running_server
from octavo.errors import ParameterError
from octavo.server.apis.responses.tools import read_tools
from octavo.server.protocol.notes import Notes

MODEL = "octavo/tiny"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "name": name, "description": description, "parameters": schema}


FLAT = [
    tool("get_weather", "Get the weather of a city."),
    tool("get_time", "Get the time in a city."),
]


def respond(client: OpenAI, **options: Any) -> Any:
    given = {"input": QUESTION, "tools": FLAT, "temperature": 0, "max_output_tokens": 150}
    return client.responses.create(model=MODEL, **given | options)


def test_a_response_has_its_calls_as_items(client: OpenAI) -> None:
    answer = respond(client)
    (item,) = answer.output
    assert (item.type, item.name, item.arguments) == (
        "function_call",
        "get_weather",
        '{"city": "Paris"}',
    )
    assert item.call_id
    assert (answer.status, item.status) == ("completed", "completed")
    named = respond(client, tool_choice={"type": "function", "name": "get_time"})
    assert [each.name for each in named.output] == ["get_time"]
    assert named.tool_choice.name == "get_time"
    none = respond(client, tool_choice="none")
    assert [each.type for each in none.output] == ["message"]


def test_a_responses_call_streams_in_openais_order(client: OpenAI) -> None:
    events = list(respond(client, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert set(kinds[3:-3]) == {"function_call_arguments.delta"}
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert "".join(event.delta for event in events[3:-3]) == '{"city": "Paris"}'
    asked = {"model": MODEL, "input": QUESTION, "tools": FLAT, "temperature": 0}
    with client.responses.stream(**asked) as stream:  # the package puts the pieces together
        (item,) = stream.get_final_response().output
    assert (item.name, item.arguments) == ("get_weather", '{"city": "Paris"}')


INCLUDED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def text_and_logprobs(item: Any) -> tuple[str, list[Any]]:
    (part,) = item.content
    return part.text, part.logprobs


def streamed_text(events: Any) -> tuple[str, list[Any]]:
    """What the pieces of a text say, which is also what is said of it at its end."""
    events = list(events)
    pieces = [event for event in events if event.type == "response.output_text.delta"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    text, logprobs = text_and_logprobs(events[-1].response.output[-1])
    assert text == done.text == "".join(event.delta for event in pieces)
    for told in (done.logprobs, [each for event in pieces for each in event.logprobs]):
        assert [(t.token, t.logprob) for t in told] == [(t.token, t.logprob) for t in logprobs]
    return text, logprobs


def test_logprobs_of_a_response_are_its_texts_beside_tools(client: OpenAI) -> None:
    asked = {"input": "What is the capital of France?", **INCLUDED}
    (item,) = respond(client, **asked).output
    text, made = text_and_logprobs(item)
    plain, wanted = text_and_logprobs(respond(client, **asked, tool_choice="none").output[0])
    assert text == plain == "".join(each.token for each in made)
    assert [each.token for each in made] == [each.token for each in wanted]
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 2 for each in made)
    pieces, told = streamed_text(respond(client, **asked, stream=True))
    assert (pieces, [each.token for each in told]) == (text, [each.token for each in made])
    call = respond(client, **INCLUDED)
    assert [each.type for each in call.output] == ["function_call"]


THINKING = """
from octavo.tools import Stream
from octavo_registry import hookimpl

OCTAVO_API = "1"

@hookimpl
def register_reasoning_parsers(parsers): parsers.add("thinking", "thinking:Thinking")

class Thinking:
    samples, markers = ("a",), ()
    def __init__(self, tokenizer): pass
    def before_answer(self, prompt): return None
    def stream(self, tools=None, *, prompt=None): return Stream(read)

def read(reader): yield from reader.text_until("l of", to=reader.reasoning)
"""


@pytest.mark.slow
def test_logprobs_of_a_response_are_its_texts_behind_reasoning(tmp_path, monkeypatch) -> None:
    (tmp_path / "thinking.py").write_text(THINKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    flags = ("--plugin", "thinking", "--reasoning-parser", "thinking")
    asked = {"input": "What is the capital of France?", **INCLUDED}
    with (
        running_server(tmp_path / "log", *flags) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        for more in ({"tools": []}, {"tools": FLAT}):
            thought, said = respond(client, **asked, **more).output
            assert thought.content[0].text == "The capita"
            text, made = text_and_logprobs(said)
            assert text == " France is Paris." == "".join(each.token for each in made)
            pieces, told = streamed_text(respond(client, **asked, **more, stream=True))
            assert (pieces, [each.token for each in told]) == (text, [e.token for e in made])


def test_a_result_goes_back_into_a_response(client: OpenAI) -> None:
    first = respond(client)
    result = {
        "type": "function_call_output",
        "call_id": first.output[0].call_id,
        "output": "18 degrees, sunny",
    }
    answer = respond(client, input=[*QUESTION, *first.output, result])
    assert [each.type for each in answer.output] == ["message"]
    assert answer.output_text
    assert answer.usage.input_tokens > first.usage.input_tokens + 20


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_serch"}]}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{**FLAT[0], "parameter": 1}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
        ({"tool_choice": {"type": "hosted"}}, "tool_choice"),
    ],
)
def test_what_a_response_cannot_call_is_refused_by_name(client: OpenAI, more, param) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        respond(client, **more)
    assert raised.value.param == param


def test_many_names_are_compared_in_linear_time() -> None:
    inner = [{"type": "function", "name": f"f{n}"} for n in range(20_000)]
    began = time.process_time()
    read = read_tools([{"type": "namespace", "name": "n", "tools": inner}], None, Notes())
    assert time.process_time() - began < 2  # 0.1 s; each with all others: 10 s
    assert len(read.functions) == len(read.namespaced) == len(inner)
    again = {"type": "function", "name": "n__f7"}
    with pytest.raises(ParameterError, match="two tools have the name 'n__f7'"):
        read_tools([{"type": "namespace", "name": "n", "tools": inner[:9]}, again], None, Notes())
