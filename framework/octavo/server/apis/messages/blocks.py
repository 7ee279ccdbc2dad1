"""The blocks of an answer in Anthropic's form, and the events that tell of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from octavo.inputs.messages import UNREADABLE
from octavo.server.http.exchange import named_event
from octavo_registry import Delta


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
