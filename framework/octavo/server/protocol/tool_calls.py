"""Tool calls and reasoning as OpenAI's chat writes them, whole and in pieces."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from octavo.inputs.messages import UNREADABLE
from octavo_registry import Delta, ParsedMessage


class CalledFunction(msgspec.Struct):
    """The function of a call; of a piece the name comes once, and the arguments bit by bit."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


class MessageToolCall(msgspec.Struct):
    """A call."""

    id: str | None
    function: CalledFunction
    type: str = "function"


class ToolCallPiece(msgspec.Struct):
    """What is new of the call with this index."""

    index: int
    function: CalledFunction
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET


def message_fields(message: ParsedMessage, *, with_reasoning: bool) -> dict[str, Any]:
    """What a message puts into the fields of an answer."""
    fields: dict[str, Any] = {"content": message.content}
    if message.content is None and not message.tool_calls and message.reasoning is None:
        fields["content"] = ""
    if with_reasoning and message.reasoning is not None:
        fields |= _reasoning(message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = message_calls(message)
    return fields


def message_calls(message: ParsedMessage) -> list[MessageToolCall]:
    """The calls of a message."""
    return [
        MessageToolCall(call.id, CalledFunction(call.name, call.arguments))
        for call in message.tool_calls
    ]


def readable_arguments(text: str) -> str:
    """A call's arguments as JSON that any reader takes: models write numbers that it has not."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps({UNREADABLE: text})
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return msgspec.json.encode(value).decode()  # with null for NaN and infinities
    return text


def delta_fields(delta: Delta, *, with_reasoning: bool) -> dict[str, Any]:
    """What a piece puts into them."""
    fields: dict[str, Any] = {}
    if delta.content is not None:
        fields["content"] = delta.content
    if with_reasoning and delta.reasoning is not None:
        fields |= _reasoning(delta.reasoning)
    if delta.tool_call_index is not None:
        piece = ToolCallPiece(
            delta.tool_call_index, CalledFunction(arguments=delta.arguments or "")
        )
        if delta.name is not None:
            piece.id, piece.type = delta.id or "", "function"
            piece.function.name = delta.name
        fields["tool_calls"] = [piece]
    return fields


def _reasoning(text: str) -> dict[str, str]:
    """The field's name here and in vLLM, and the one that DeepSeek and older clients have."""
    return {"reasoning": text, "reasoning_content": text}
