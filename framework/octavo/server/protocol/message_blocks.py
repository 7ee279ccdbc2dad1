"""Anthropic's blocks: those of a conversation as OpenAI's messages, and those of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from octavo.errors import MessageError, ParameterError
from octavo.params import shown
from octavo.server.exchange import named_event
from octavo.server.protocol.conversation import TOOL_HINTS, check_hints, read_keys
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.tool_calls import UNREADABLE
from octavo_registry import Delta

_KNOWN: Final = {
    "text": {"type", "text", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
}
_NOTED: Final = frozenset(("citations", "caller", "cache_control"))
"""Keys of blocks that have no effect where they are not among the known."""
_OF_ROLE: Final = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_TOOL: Final = {"type", "name", "description", "input_schema", "strict", "cache_control"}
_CHOICE: Final = {"type", "name", "disable_parallel_tool_use"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


class TextBlock(msgspec.Struct, tag="text"):
    """A part of an answer."""

    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """What the model thought before it; nothing is signed here."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


def chat_messages(where: str, role: str, content: Any, notes: Notes) -> list[dict[str, Any]]:
    """The messages that one of Anthropic's stands for: each tool's result is one of its own."""
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not content:
        raise MessageError(f"{where} must be text or a list of blocks")
    made: list[dict[str, Any]] = []
    for index, given in enumerate(content):
        block = _checked(f"{where}[{index}]", given, _OF_ROLE[role], notes)
        if block["type"] == "tool_result":
            made.append(_result(f"{where}[{index}]", block, notes))
            continue
        if not made or made[-1]["role"] != role:
            made.append({"role": role})
        message = made[-1]
        match block["type"]:
            case "text":
                message.setdefault("content", []).append({"type": "text", "text": block["text"]})
            case "thinking":
                before = message.get("reasoning_content", "")
                message["reasoning_content"] = before + block["thinking"]
            case "tool_use":
                message.setdefault("tool_calls", []).append(_call(f"{where}[{index}]", block))
    for message in made:
        if "tool_calls" not in message:
            message.setdefault("content", "")
    return made


def chat_tools(tools: list[dict[str, Any]] | None, notes: Notes) -> list[dict[str, Any]] | None:
    """Tools as OpenAI describes them."""
    if tools is None:
        return None
    return [_tool(f"tools[{i}]", tool, notes) for i, tool in enumerate(tools)]


def chat_tool_choice(choice: dict[str, Any] | None, notes: Notes) -> tuple[Any, bool | None]:
    """OpenAI's tool_choice and parallel_tool_calls."""
    if choice is None:
        return None, None
    choice = read_keys("tool_choice", choice, _CHOICE, notes)
    kind, only_one = choice.get("type"), choice.get("disable_parallel_tool_use")
    if not isinstance(only_one, (bool, type(None))):
        raise ParameterError(
            f"tool_choice.disable_parallel_tool_use={shown(only_one)} must be true or false",
            param="tool_choice",
        )
    parallel = None if only_one is None else not only_one
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}, parallel
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise ParameterError(
            f"tool_choice.type={shown(kind)} must be 'auto', 'any', 'tool' or 'none'",
            param="tool_choice",
        )
    return _CHOICES[kind], parallel


def _tool(where: str, given: dict[str, Any], notes: Notes) -> dict[str, Any]:
    if (given.get("type") or "custom") != "custom":
        raise ParameterError(
            f"{where}.type={shown(given['type'])} is not run here; describe a tool of your own",
            param="tools",
        )
    tool = read_keys(where, given, _TOOL, notes, TOOL_HINTS)
    check_hints(where, tool)
    function = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _checked(where: str, given: Any, kinds: tuple[str, ...], notes: Notes) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in kinds:
        raise MessageError(f"{where}.type is {shown(kind)}; this route takes {', '.join(kinds)}")
    block = read_keys(where, given, _KNOWN[kind], notes, _NOTED)
    check_hints(where, block)
    if kind in ("text", "thinking") and not isinstance(block.get(kind), str):
        raise MessageError(f"{where}.{kind} must be text")
    return block


def _call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    for key, kind, wanted in (
        ("id", str, "text"),
        ("name", str, "text"),
        ("input", dict, "an object"),
    ):
        if not isinstance(block.get(key), kind):
            raise MessageError(f"{where}.{key} must be {wanted}")
    function = {"name": block["name"], "arguments": block["input"]}
    return {"id": block["id"], "type": "function", "function": function}


def _result(where: str, block: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    if not isinstance(block.get("tool_use_id"), str):
        raise MessageError(f"{where}.tool_use_id must be text")
    content = block.get("content", "")
    if isinstance(content, list):
        place = f"{where}.content"
        parts = [_checked(f"{place}[{i}]", p, ("text",), notes) for i, p in enumerate(content)]
        content = "\n".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise MessageError(f"{where}.content must be text or a list of blocks")
    if block.get("is_error"):  # messages to models have no field for it
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


class AnswerBlocks:
    """The blocks of an answer as its deltas come, and the events that tell of them."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._pieces: list[str] = []
        self._is_open = False

    def take(self, delta: Delta) -> list[bytes]:
        """Add a delta."""
        events = []
        text = delta.content or delta.reasoning or delta.arguments or ""
        kind = _kind(delta)
        if delta.name is not None or not self._is_open or not isinstance(self.blocks[-1], kind):
            if kind is not ToolUseBlock and not text:
                return []
            events += [*self._close(), self._begin(delta)]
        if text:
            self._pieces.append(text)
            index = len(self.blocks) - 1
            events.append(
                named_event("content_block_delta", {"index": index, "delta": _news(kind, text)})
            )
        return events

    def end(self) -> list[bytes]:
        """No more will come; an answer has one block at least."""
        events = [] if self.blocks else [self._begin(Delta())]
        return [*events, *self._close()]

    @property
    def has_calls(self) -> bool:
        """Whether one of them is a call."""
        return any(isinstance(block, ToolUseBlock) for block in self.blocks)

    def _begin(self, delta: Delta) -> bytes:
        kind = _kind(delta)
        block: Block
        if kind is ToolUseBlock:
            block = ToolUseBlock(delta.id or "", delta.name or "", {})
        else:
            block = ThinkingBlock("") if kind is ThinkingBlock else TextBlock("")
        self._is_open = True
        self.blocks.append(block)
        return named_event(
            "content_block_start", {"index": len(self.blocks) - 1, "content_block": block}
        )

    def _close(self) -> list[bytes]:
        if not self._is_open:
            return []
        text, self._pieces, self._is_open = "".join(self._pieces), [], False
        match self.blocks[-1]:
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
            case ToolUseBlock() as block:
                block.input = _input(text)
        return [named_event("content_block_stop", {"index": len(self.blocks) - 1})]


def _kind(delta: Delta) -> type[Block]:
    if delta.tool_call_index is not None:
        return ToolUseBlock
    return TextBlock if delta.reasoning is None else ThinkingBlock


def _news(kind: type[Block], text: str) -> dict[str, str]:
    if kind is ToolUseBlock:
        return {"type": "input_json_delta", "partial_json": text}
    if kind is ThinkingBlock:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _input(text: str) -> dict[str, Any]:
    """The arguments, an object whatever the model wrote."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: text}
