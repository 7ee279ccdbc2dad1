"""A stream's pieces joined are the answer in one piece, whatever shapes the text."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

PROMPTS = ("Hello", "What is the capital of France?", "Zähle: eins, zwei", "日本語 🎈", "a")
STOPS = ("e", " the", "is P", "France", "!", "\n", "é", "🎈", "aa", "aab", "�", ".")
sampling = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 50),
        "temperature": st.sampled_from([0, 1.0, 4.0, 20.0]),
    },
    optional={
        "stop": st.lists(st.sampled_from(STOPS) | st.text(min_size=1, max_size=3), max_size=4),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "min_tokens": st.integers(0, 1),
        "ignore_eos": st.booleans(),
        "bad_words": st.lists(st.sampled_from(["Hello", "capital"]), max_size=2),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "truncate_prompt_tokens": st.sampled_from([-1, 3, 50]),
    },
)
prompts = st.sampled_from(PROMPTS)
counts = st.integers(1, 14)
few = settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking over HTTP takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
many = settings(few, max_examples=100)


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


def whole(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def joined(parts: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Choices of completions or chats as one piece would have them."""
    made = [{"text": "", "ids": [], "logprobs": [], "finish": None, "stop": None} for _ in range(n)]
    for part in parts:
        for choice in part["choices"]:
            into = made[choice["index"]]
            assert into["finish"] is None  # nothing follows the end
            add(into, choice, choice.get("delta", choice))
    return made


def add(into: dict[str, Any], choice: dict[str, Any], message: dict[str, Any]) -> None:
    into["text"] += message.get("text", message.get("content", ""))
    into["ids"] += choice.get("token_ids", [])
    into["finish"] = choice["finish_reason"]
    into["stop"] = choice.get("stop_reason")
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:
        into["logprobs"] += [entry["token"] for entry in logprobs["content"]]
    elif logprobs:
        into["logprobs"] += list(zip(logprobs["text_offset"], logprobs["tokens"], strict=True))


def check(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    body = {**body, "return_token_ids": True}
    with ThreadPoolExecutor(1) as beside:  # two in a step take hardly longer than one
        whole_one = beside.submit(whole, http, path, body)
        more = {**body, "stream_options": {"include_usage": True}}
        *parts, last = events(http, path, more)
        wanted = whole_one.result()
    n = len(wanted["choices"])
    one_piece = joined([], n)
    for choice, into in zip(wanted["choices"], one_piece, strict=True):
        add(into, choice, choice.get("message", choice))
    assert joined(parts, n) == one_piece
    for usage in (wanted["usage"], last["usage"]):
        del usage["prompt_tokens_details"]  # one may find more in the cache
    assert last["usage"] == wanted["usage"]


def check_chat(http, params, prompt, max_tokens, n, top) -> None:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "n": n}
    logprobs = {} if top is None else {"logprobs": True, "top_logprobs": top}
    check(http, "/v1/chat/completions", {**params, **body, **logprobs})


def check_completion(http, params, prompt, max_tokens, n, top, echo) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "n": n, "logprobs": top, "echo": echo}
    check(http, "/v1/completions", {**params, **body})


tops = st.none() | st.integers(0, 3)
ns = st.integers(1, 3)
prompt_lists = prompts | st.lists(prompts, min_size=2, max_size=3)


@given(sampling, prompts, counts, ns, tops)
@few
def test_a_chats_pieces_are_its_answer(http, params, prompt, max_tokens, n, top) -> None:
    check_chat(http, params, prompt, max_tokens, n, top)


@given(sampling, prompt_lists, counts, ns, tops, st.booleans())
@few
def test_a_completions_pieces_are_its_text(http, params, prompt, max_tokens, n, top, echo) -> None:
    check_completion(http, params, prompt, max_tokens, n, top, echo)


@pytest.mark.slow
@given(sampling, prompts, counts, ns, tops)
@many
def test_many_chats_pieces_are_their_answers(http, params, prompt, max_tokens, n, top) -> None:
    check_chat(http, params, prompt, max_tokens, n, top)


@pytest.mark.slow
@given(sampling, prompt_lists, counts, ns, tops, st.booleans())
@many
def test_many_completions_pieces_are_their_texts(
    http, params, prompt, max_tokens, n, top, echo
) -> None:
    check_completion(http, params, prompt, max_tokens, n, top, echo)


@given(sampling, prompts, counts)
@settings(few, max_examples=10)
def test_a_responses_pieces_are_its_text(http, params, prompt, max_tokens) -> None:
    body = {**params, "input": prompt, "max_output_tokens": max_tokens}
    wanted = whole(http, "/v1/responses", body)
    parts = events(http, "/v1/responses", body)
    text = "".join(p["delta"] for p in parts if p["type"] == "response.output_text.delta")
    final = parts[-1]["response"]
    (message,) = wanted["output"]
    assert text == message["content"][0]["text"] == final["output"][0]["content"][0]["text"]
    assert (final["status"], final["usage"]["output_tokens"]) == (
        wanted["status"],
        wanted["usage"]["output_tokens"],
    )


@given(prompts, counts, st.lists(st.sampled_from(STOPS), max_size=4), st.sampled_from([0, 5]))
@settings(few, max_examples=10)
def test_a_messages_pieces_are_its_text(http, prompt, max_tokens, stops, temperature) -> None:
    # Without a seed, that of the likeliest of all tokens repeats.
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stop_sequences": stops,
        "temperature": temperature,
        "top_k": 1,
    }
    wanted = whole(http, "/v1/messages", body)
    parts = events(http, "/v1/messages", body)
    deltas = [p["delta"]["text"] for p in parts if p["type"] == "content_block_delta"]
    assert "".join(deltas) == wanted["content"][0]["text"]
    ended = next(p for p in parts if p["type"] == "message_delta")
    assert ended["delta"] == {name: wanted[name] for name in ("stop_reason", "stop_sequence")}
    assert ended["usage"]["output_tokens"] == wanted["usage"]["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_but_the_prompt_is_echoed(http, stream) -> None:
    body = {"prompt": "Hello there", "echo": True, "max_tokens": 0, "logprobs": 1}
    if stream:
        (answer,) = events(http, "/v1/completions", body)
    else:
        answer = whole(http, "/v1/completions", body)
        assert answer["usage"]["completion_tokens"] == 0
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello there", "length")
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) > 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_prompt_logprobs_come_in_streams_too(http, path) -> None:
    prompt = {"prompt": "Hello there"} if path == "/v1/completions" else {}
    messages = {} if prompt else {"messages": [{"role": "user", "content": "Hello"}]}
    body = {**prompt, **messages, "prompt_logprobs": 1, "max_tokens": 2}

    def reported(answer: dict[str, Any]) -> Any:
        return answer.get("prompt_logprobs") or answer["choices"][0].get("prompt_logprobs")

    first, *others = events(http, path, body)
    assert len(reported(first)) > 2
    assert len(reported(first)) == len(reported(whole(http, path, body)))
    assert not any(reported(each) for each in others)


def test_usage_comes_with_each_event_where_that_is_asked_for(http) -> None:
    options = {"continuous_usage_stats": True}
    body = {"prompt": "Hello", "max_tokens": 3, "temperature": 0, "stream_options": options}
    made = [part["usage"]["completion_tokens"] for part in events(http, "/v1/completions", body)]
    assert made == sorted(made)
    assert made[-1] == 3
