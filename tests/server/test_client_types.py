"""Replies and events of all three APIs are what the types of OpenAI's and Anthropic's packages say.

Their clients take anything; others, as TypeScript's, are as strict as this is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from live_server import LiveServer

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CHAT = ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 24})
TEXT = ("/v1/completions", {"prompt": "Hello", "max_tokens": 8})
RESPONSES = ("/v1/responses", {"input": "Hello", "max_output_tokens": 24})
MESSAGES = ("/v1/messages", {"model": "octavo/tiny", "messages": HELLO, "max_tokens": 24})
ASKED: list[tuple[tuple[str, dict[str, Any]], Any, Any, dict[str, Any]]] = [
    *(
        (CHAT, ChatCompletion, ChatCompletionChunk, more)
        for more in (
            {},
            {"n": 2, "logprobs": True, "top_logprobs": 2},
            {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
            {"response_format": {"type": "json_object"}},
            {"max_tokens": 2, "stop": ["zz"]},
        )
    ),
    *((TEXT, Completion, Completion, more) for more in ({}, {"n": 2, "logprobs": 1})),
    *(
        (RESPONSES, Response, ResponseStreamEvent, more)
        for more in (
            {},
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {
                "tools": [{"type": "function", **FUNCTION, "strict": True}],
                "tool_choice": "required",
            },
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            {"max_output_tokens": 2, "instructions": "Be brief.", "metadata": {"a": "b"}},
            {"reasoning": {"effort": "none"}, "truncation": "disabled"},
            {"background": True},
        )
    ),
    *(
        (MESSAGES, Message, RawMessageStreamEvent, more)
        for more in (
            {},
            {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
            {"stop_sequences": ["e"]},
            {"max_tokens": 2, "system": "Be brief."},
        )
    ),
]
LEFT_OUT = {
    CHAT[0]: {"function_call", "annotations", "audio"},
    RESPONSES[0]: {"mode", "context", "prompt", "conversation", "output_text", "encrypted_content"},
    MESSAGES[0]: {"citations", "container", "context_management"},
}
"""Keys that the APIs leave out of such answers, and that may not be null in TypeScript's types."""


@pytest.fixture(scope="module")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {*value, *(key for each in value.values() for key in keys_of(each))}
    return {key for each in value for key in keys_of(each)} if isinstance(value, list) else set()


adapter = cache(TypeAdapter)  # that of a union takes seconds to make


def as_typed(path: str, event: str) -> str:
    """A text's reason to end is null until it does, though the package's type has no null."""
    if path != TEXT[0]:
        return event
    return event.replace('"finish_reason":null', '"finish_reason":"stop"')


@pytest.mark.parametrize(("asked", "whole", "event", "more"), ASKED)
def test_replies_and_events_have_the_packages_types(http, asked, whole, event, more) -> None:
    path, body = asked
    reply = http.post(path, json={**body, **more})
    assert reply.status_code == 200, reply.text
    adapter(whole).validate_json(reply.text, strict=True)
    usage = {"stream_options": {"include_usage": True}} if path in (CHAT[0], TEXT[0]) else {}
    streamed = http.post(path, json={**body, **more, **usage, "stream": True})
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    told = [text for text in events if text != "[DONE]" and json.loads(text).get("type") != "ping"]
    assert len(told) > 2
    for text in told:
        adapter(event).validate_json(as_typed(path, text), strict=True)
    for text in (reply.text, *told):
        assert not keys_of(json.loads(text)) & LEFT_OUT.get(path, set())


def test_counts_and_models_have_them_too(http) -> None:
    count = http.post("/v1/messages/count_tokens", json={"model": "", "messages": HELLO})
    MessageTokensCount.model_validate_json(count.text, strict=True)
    for model in http.get("/v1/models").json()["data"]:
        Model.model_validate(model, strict=True)
