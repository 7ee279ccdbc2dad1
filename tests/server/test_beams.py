"""Beam search and the side at which prompts are cut, over HTTP and beside ``LLM``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from octavo import LLM, SamplingParams
from octavo.frontend.async_llm import AsyncLLM
from octavo.params import BeamSearchParams, GuidedParams
from octavo.server.app import add_built_in_routes
from server_in_process import MODEL, clients

PROMPT = "The capital of France is"
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm():
    with LLM("octavo/tiny", max_model_len=1024) as made:
        yield made


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json={"return_token_ids": True, **body})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_the_beams_are_those_of_the_library(http, llm) -> None:
    for more in ({}, {"length_penalty": 0.0}, {"ignore_eos": True}):
        params = BeamSearchParams(beam_width=3, max_tokens=6, **more)
        (wanted,) = llm.beam_search([PROMPT], params)
        asked = {"prompt": PROMPT, "use_beam_search": True, "n": 3, "max_tokens": 6, **more}
        answer = post(http, "/v1/completions", **asked)
        choices = answer["choices"]
        assert [each["index"] for each in choices] == [0, 1, 2]
        assert [each["token_ids"] for each in choices] == [b.token_ids for b in wanted.sequences]
        assert [each["text"] for each in choices] == [b.text for b in wanted.sequences]
        assert {each["finish_reason"] for each in choices} <= {"stop", "length"}
        count = sum(len(beam.token_ids) for beam in wanted.sequences)
        assert answer["usage"]["completion_tokens"] == count


def test_each_prompt_and_a_chat_have_beams(http, llm) -> None:
    asked = {"use_beam_search": True, "n": 2, "max_tokens": 4}
    both = post(http, "/v1/completions", prompt=[PROMPT, "Once upon"], **asked)["choices"]
    alone = post(http, "/v1/completions", prompt="Once upon", **asked)["choices"]
    assert [each["index"] for each in both] == [0, 1, 2, 3]
    assert [each["text"] for each in both[2:]] == [each["text"] for each in alone]
    answer = post(http, "/v1/chat/completions", messages=CHAT, **asked)
    prompt = {"prompt_token_ids": answer["prompt_token_ids"]}
    (wanted,) = llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=4))
    said = [each["message"]["content"] for each in answer["choices"]]
    assert said == [beam.text for beam in wanted.sequences]


def test_beams_keep_to_a_constraint(http, llm) -> None:
    asked = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 8}
    answer = post(http, "/v1/completions", **asked, guided_choice=["Rome", "Paris"])
    guided = GuidedParams(choice=["Rome", "Paris"])
    params = BeamSearchParams(beam_width=2, max_tokens=8, guided=guided)
    (wanted,) = llm.beam_search([PROMPT], params)
    assert {each["text"] for each in answer["choices"]} == {"Rome", "Paris"}
    assert [each["text"] for each in answer["choices"]] == [b.text for b in wanted.sequences]


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"stream": True}, "stream"),
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"echo": True}, "echo"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"n": 100}, "n=100"),
        ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
    ],
)
def test_what_a_search_cannot_have_is_refused(http, more: dict[str, Any], name: str) -> None:
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 2, **more}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 400
    assert name in reply.json()["error"]["message"]


def test_a_chat_may_have_old_calls_and_ask_for_none(http) -> None:
    asked = {"use_beam_search": True, "n": 2, "max_tokens": 2}
    call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    history = [*CHAT, call, {"role": "function", "name": "f", "content": "Paris"}]
    post(http, "/v1/chat/completions", messages=history, tool_choice="none", **asked)


async def test_one_beam_of_a_chat_is_read_as_the_likeliest_answer_is() -> None:
    properties = {"city": {"enum": ["Rome", "Paris"]}}
    schema = {"type": "object", "properties": properties, "required": ["city"]}
    function = {"name": "weather", "parameters": schema}
    asked: list[dict[str, Any]] = [
        {"extra_body": {"guided_regex": "<think>(a|be)</think>(Rome|Paris)"}},
        {"extra_body": {"guided_regex": "<think>(a|be)</think>(Rome|Paris)"}, "max_tokens": 3},
        {"tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        {"functions": [function], "function_call": {"name": "weather"}},
        {"tools": [{"type": "function", "function": function}], "tool_choice": "none"},
    ]
    options = {"dtype": "float32", "num_threads": 1, "reasoning_parser": "qwen3"}
    async with AsyncLLM("octavo/tiny", engine_process=False, **options) as engine:
        add_built_in_routes(engine.host.routes)
        (client,) = clients(engine)
        for each in asked:
            body = {"model": MODEL, "messages": CHAT, "max_tokens": 60, "temperature": 0, **each}
            ways = ({}, {"use_beam_search": True})
            alone, found = [
                (
                    await client.chat.completions.create(
                        **{**body, "extra_body": {**body.get("extra_body", {}), **way}}
                    )
                ).choices[0]
                for way in ways
            ]
            for call in (*(alone.message.tool_calls or ()), *(found.message.tool_calls or ())):
                call.id = ""
            assert found.message.to_dict() == alone.message.to_dict()
            assert found.finish_reason == alone.finish_reason
            is_called = bool(found.message.tool_calls or found.message.function_call)
            assert is_called == (each.get("tool_choice") == "required" or "functions" in each)


def test_what_is_drawn_with_has_no_effect_and_is_told(http) -> None:
    asked = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 2}
    one = post(http, "/v1/completions", **asked, temperature=0, presence_penalty=0)
    assert "warnings" not in one
    told = {"top_p": 0.5, "seed": 3, "skip_special_tokens": False}
    two = post(http, "/v1/completions", **asked, **told, include_stop_str_in_output=False)
    assert [line.split()[0] for line in two["warnings"]] == list(told)
    assert one["choices"] == two["choices"]


def test_a_prompt_is_cut_at_the_side_that_is_asked_for(http, llm) -> None:
    text = "one two three four five six seven eight nine ten"
    ids = post(http, "/tokenize", prompt=text)["tokens"]
    for side, kept in (("left", ids[-3:]), ("right", ids[:3])):
        cut = {"truncate_prompt_tokens": 3, "truncation_side": side, "max_tokens": 1}
        (choice,) = post(http, "/v1/completions", prompt=text, **cut)["choices"]
        assert choice["prompt_token_ids"] == kept
        params = SamplingParams(max_tokens=1, truncate_prompt_tokens=3, truncation_side=side)
        (output,) = llm.generate([text], params)
        assert output.prompt_token_ids == kept
    reply = http.post("/v1/completions", json={"prompt": text, "truncation_side": "middle"})
    assert reply.status_code == 400


def test_of_a_long_text_only_what_is_kept_is_read(http) -> None:
    text = "begin " + "and on it goes " * 3000 + "end"
    first, last = (
        post(
            http, "/v1/completions", prompt=text, max_tokens=1,
            truncate_prompt_tokens=5, truncation_side=side,
        )["choices"][0]["prompt_token_ids"]
        for side in ("right", "left")
    )  # fmt: skip
    whole = post(http, "/tokenize", prompt="begin " + "and on it goes " * 3)["tokens"]
    assert first == whole[:5]
    assert len(last) == 5
    assert last[-1] == post(http, "/tokenize", prompt=" goes end")["tokens"][-1]
