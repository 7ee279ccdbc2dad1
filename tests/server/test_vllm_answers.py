"""What clients and tests of vLLM's server look for in answers, over the real engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKS = [{"role": "user", "content": "What is the weather in Paris?"}]


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def events(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = http.post(path, json={**body, "stream": True})
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_no_further_logprobs_are_still_those_of_the_tokens_that_came(http) -> None:
    answer = post(http, "/v1/completions", prompt="The capital", max_tokens=3, logprobs=0)
    logprobs = answer["choices"][0]["logprobs"]
    assert [len(each) for each in logprobs["top_logprobs"]] == [1, 1, 1]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top == {token: logprob}


def test_tokens_of_the_prompt_are_ids_too(http) -> None:
    wish = {"echo": True, "logprobs": 1, "max_tokens": 2, "return_tokens_as_token_ids": True}
    wish |= {"prompt": "The capital of", "return_token_ids": True, "temperature": 0}
    (choice,) = post(http, "/v1/completions", **wish)["choices"]
    ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == [f"token_id:{each}" for each in ids]
    assert len(choice["prompt_token_ids"]) > 1


def test_what_was_not_asked_for_is_null_in_a_whole_answer(http) -> None:
    answer = post(http, "/v1/completions", prompt="The", max_tokens=1)
    keys = ("prompt_logprobs", "prompt_token_ids", "token_ids")
    assert [answer["choices"][0][key] for key in keys] == [None] * 3
    answer = post(http, "/v1/chat/completions", messages=CHAT, max_tokens=1)
    assert answer["prompt_logprobs"] is answer["prompt_token_ids"] is None
    assert answer["choices"][0]["token_ids"] is None
    for event in events(http, "/v1/completions", prompt="The", max_tokens=1):
        assert not {*keys} & event["choices"][0].keys()


def test_a_conversation_may_get_special_tokens_around_it(http) -> None:
    plain = post(http, "/tokenize", messages=CHAT)["tokens"]
    around = post(http, "/tokenize", messages=CHAT, add_special_tokens=True)["tokens"]
    text = post(http, "/tokenize", prompt="a", add_special_tokens=False)["tokens"]
    full = post(http, "/tokenize", prompt="a")["tokens"]
    begin = full.index(text[0])
    assert around == [*full[:begin], *plain, *full[begin + 1 :]]


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ({"5": 1, "abc": 1}, "logit_bias: the key 'abc'"),
        ({"5": 1, "6": "x"}, "logit_bias['6']"),
        ({"5": 1, "1.5": 1}, "logit_bias: the key '1.5'"),
    ],
)
def test_a_bad_key_of_a_bias_is_named(http, bias: dict[str, Any], said: str) -> None:
    reply = http.post("/v1/completions", json={"prompt": "The", "logit_bias": bias})
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "logit_bias"


def test_the_newer_of_two_limits_counts(http) -> None:
    wish = {"messages": CHAT, "max_tokens": 9, "max_completion_tokens": 2, "ignore_eos": True}
    answer = post(http, "/v1/chat/completions", **wish)
    assert answer["usage"]["completion_tokens"] == 2


def test_functions_are_tools_in_an_older_form(http) -> None:
    asked = {"messages": ASKS, "temperature": 0, "max_tokens": 60}
    newer = post(
        http, "/v1/chat/completions", **asked, tools=[{"type": "function", "function": WEATHER}]
    )
    (call,) = newer["choices"][0]["message"]["tool_calls"]
    (choice,) = post(http, "/v1/chat/completions", **asked, functions=[WEATHER])["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == call["function"]
    assert choice["message"]["content"] is None
    assert "tool_calls" not in choice["message"]
    pieces = [
        event["choices"][0]["delta"].get("function_call", {})
        for event in events(http, "/v1/chat/completions", **asked, functions=[WEATHER])
        if event["choices"]
    ]
    assert "".join(piece.get("name", "") for piece in pieces) == "get_weather"
    assert "".join(piece.get("arguments", "") for piece in pieces) == call["function"]["arguments"]
    named = {"functions": [WEATHER], "function_call": {"name": "get_weather"}}
    (choice,) = post(http, "/v1/chat/completions", **asked, **named)["choices"]
    assert choice["message"]["function_call"]["name"] == "get_weather"
    assert choice["finish_reason"] == "stop"
    none = post(http, "/v1/chat/completions", **asked, functions=[WEATHER], function_call="none")
    assert "function_call" not in none["choices"][0]["message"]


def test_a_functions_result_is_a_tools(http) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    older = [
        *ASKS,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "get_weather", "content": "sunny"},
    ]
    newer = [
        *ASKS,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "get_weather", "content": "sunny"},
    ]
    asked = {"temperature": 0, "max_tokens": 8, "return_token_ids": True}
    one, other = (
        post(http, "/v1/chat/completions", messages=messages, **asked)
        for messages in (older, newer)
    )
    assert one["prompt_token_ids"] == other["prompt_token_ids"]
    assert one["choices"] == other["choices"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"functions": [WEATHER], "tools": []}, "functions are tools"),
        ({"functions": [WEATHER], "function_call": "always"}, "function_call='always'"),
        ({"functions": [WEATHER], "function_call": {"name": "nope"}}, "'nope'"),
        ({"functions": [{"name": 3}]}, "name"),
    ],
)
def test_functions_that_cannot_be_are_refused(http, body: dict[str, Any], said: str) -> None:
    reply = http.post("/v1/chat/completions", json={"messages": ASKS, **body})
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]


def test_a_batch_has_a_choice_for_each_conversation(http) -> None:
    others = [{"role": "user", "content": "Hello"}]
    asked = {"temperature": 0, "max_tokens": 12}
    answer = post(http, "/v1/chat/completions/batch", messages=[CHAT, others, CHAT], **asked)
    alone = [post(http, "/v1/chat/completions", messages=m, **asked) for m in (CHAT, others)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    first, second = (each["choices"][0]["message"]["content"] for each in alone)
    assert texts == [first, second, first]
    used = [each["usage"]["total_tokens"] for each in alone]
    assert answer["usage"]["total_tokens"] == 2 * used[0] + used[1]
    shown = {"return_token_ids": True, "prompt_logprobs": 1}
    told = post(http, "/v1/chat/completions/batch", messages=[CHAT, others], **asked, **shown)
    for choice, messages in zip(told["choices"], (CHAT, others), strict=True):
        one = post(http, "/v1/chat/completions", messages=messages, **asked, **shown)
        for name in ("prompt_token_ids", "prompt_logprobs"):
            assert choice[name] == one[name]
            assert len(choice[name]) == one["usage"]["prompt_tokens"]
        assert choice["token_ids"] == one["choices"][0]["token_ids"]
    for more in ({"stream": True}, {"n": 2}, {"tools": [{"type": "function"}]}, {"messages": []}):
        body = {"messages": [CHAT], **more}
        assert http.post("/v1/chat/completions/batch", json=body).status_code == 400


def test_a_balancer_may_ask_for_the_load(http) -> None:
    body = {"prompt": "The", "max_tokens": 1}

    def load(form: str | None, **more: Any) -> str | None:
        headers = {"endpoint-load-metrics-format": form} if form else {}
        reply = http.post("/v1/completions", json={**body, **more}, headers=headers)
        assert reply.status_code == 200
        found: str | None = reply.headers.get("endpoint-load-metrics")
        return found

    assert load(None) is None
    assert load("xml") is None
    text = load("TEXT") or ""
    assert text.startswith("TEXT named_metrics.kv_cache_usage_perc=0.")
    assert "named_metrics.num_requests_waiting=0.0" in text
    form, _, report = (load("json", stream=True) or "").partition(" ")
    assert form == "JSON"
    assert json.loads(report)["named_metrics"]["num_requests_waiting"] == 0
