"""Replies and events against the types of OpenAI's and Anthropic's packages, strictly."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TYPES: dict[str, tuple[Any, Any]] = {
    CHAT: (ChatCompletion, ChatCompletionChunk),
    TEXT: (Completion, Completion),
    RESPONSES: (Response, ResponseStreamEvent),
    MESSAGES: (Message, RawMessageStreamEvent),
}
"""Of a whole answer and of an event, by the route."""
LEFT_OUT = {
    CHAT: {"function_call", "annotations", "audio"},
    RESPONSES: {"mode", "context", "prompt", "conversation", "output_text", "encrypted_content"},
    MESSAGES: {"citations", "container", "context_management"},
}
"""Keys that the APIs leave out of such answers, and that may not be null in TypeScript's types."""
adapter = cache(TypeAdapter)  # that of a union takes seconds to make


def check_reply(path: str, text: str) -> None:
    """Raise unless the package would take the answer and no key is there too many."""
    adapter(TYPES[path][0]).validate_json(text, strict=True)
    _check_keys(path, text)


def check_events(path: str, text: str) -> None:
    """Raise unless it would take each event of the stream."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    told = [each for each in events if each != "[DONE]" and json.loads(each).get("type") != "ping"]
    assert len(told) > 2
    for each in told:
        _check_keys(path, each)
        if path == TEXT:  # the reason to end is null until it does, though the type has no null
            each = each.replace('"finish_reason":null', '"finish_reason":"stop"')
        adapter(TYPES[path][1]).validate_json(each, strict=True)


def _check_keys(path: str, text: str) -> None:
    assert not _keys_of(json.loads(text)) & LEFT_OUT.get(path, set())


def _keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {*value, *(key for each in value.values() for key in _keys_of(each))}
    return {key for each in value for key in _keys_of(each)} if isinstance(value, list) else set()
