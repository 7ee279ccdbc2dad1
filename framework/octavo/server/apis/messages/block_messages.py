"""Anthropic's messages of blocks as OpenAI's messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from octavo.errors import MessageError
from octavo.server.apis.messages.block_parts import NOTED, SHOWN, block_parts, text_part
from octavo.server.protocol.conversation import check_hints, read_keys, text_of
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.tool_media import EVERY_MODALITY, given_by_tool
from octavo.wording import shown

_KNOWN: Final = {
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature", "cache_control"},
}
_OF_ROLE: Final = {
    "user": (*SHOWN, "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_UNREADABLE: Final = frozenset(
    ("redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing",
     "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
     "bash_code_execution_tool_result", "text_editor_code_execution_tool_result",
     "tool_search_tool_result", "advisor_tool_result", "fallback", "tool_reference")
)  # fmt: skip
"""What Anthropic's servers put into answers for themselves, encrypted or to be run there."""


def chat_messages(
    where: str,
    role: str,
    content: Any,
    notes: Notes,
    modalities: Collection[str] = EVERY_MODALITY,
) -> list[dict[str, Any]]:
    """The messages that one of Anthropic's stands for: each tool's result is one of its own.

    Images of results follow in a user's message: most chat templates show none in a tool's.
    ``modalities`` are the model's. What stands beside results is taken for the tools', too: so
    Claude Code shows a PDF that it has read.
    """
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not content:
        raise MessageError(f"{where} must be text or a list of blocks")
    made: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    has_results = any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)

    def parts_of(place: str, block: dict[str, Any]) -> list[dict[str, Any]]:
        read = partial(block_parts, place, block, notes)
        return given_by_tool(place, read, modalities, notes) if has_results else read()

    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        kind = _kind(place, block, _OF_ROLE[role], notes)
        if kind == "tool_result":
            made.append(_result(place, block, images, parts_of, notes))
            continue
        if not made or made[-1]["role"] != role:
            made.append({"role": role})
        message = made[-1]
        if kind == "thinking":
            thought = text_of(place, _checked(place, block, notes), "thinking")
            message.setdefault("reasoning_content", []).append(thought)
        elif kind == "tool_use":
            call = _call(place, _checked(place, block, notes))
            message.setdefault("tool_calls", []).append(call)
        elif kind is not None:
            message.setdefault("content", []).extend(parts_of(place, block))
    if images:
        if made[-1]["role"] != "user":
            made.append({"role": "user", "content": []})
        made[-1]["content"] = images + made[-1].get("content", [])
    for message in made:
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
        if "tool_calls" not in message:
            message.setdefault("content", "")
    return made


def joined(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Messages of one role as one."""
    if len(messages) == 1:
        return messages[0]
    made = {key: value for message in messages for key, value in message.items()}
    contents = [each["content"] for each in messages if each.get("content")]
    if len(contents) > 1:
        made["content"] = [part for content in contents for part in _parts(content)]
    elif contents:
        made["content"] = contents[0]
    if "reasoning_content" in made:
        made["reasoning_content"] = "".join(m.get("reasoning_content", "") for m in messages)
    if "tool_calls" in made:
        made["tool_calls"] = [call for each in messages for call in each.get("tool_calls", ())]
    return made


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [text_part(content)] if isinstance(content, str) else content


def reminder(message: dict[str, Any]) -> dict[str, Any]:
    """A system's message as a user's, marked as Claude Code marks what is not the user's own."""
    begin, end = text_part("<system-reminder>\n"), text_part("\n</system-reminder>")
    parts = _parts(message["content"])
    if len(parts) == 1:
        parts = [text_part(begin["text"] + parts[0]["text"] + end["text"])]
    else:
        parts = [begin, *parts, end]
    return {"role": "user", "content": parts}


def _kind(where: str, block: Any, kinds: tuple[str, ...], notes: Notes) -> str | None:
    """The block's type; None: it cannot be read, and is left out."""
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(kind, str) and kind in kinds:
        return kind
    if isinstance(kind, str) and kind in _UNREADABLE:
        notes.add(f"{where}:{kind}", "cannot be read here and was left out")
        return None
    raise MessageError(f"{where}.type is {shown(kind)}; this route takes {', '.join(kinds)}")


def _checked(where: str, given: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    block = read_keys(where, given, _KNOWN[given["type"]], notes, NOTED)
    check_hints(where, block)
    return block


def _call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": text_of(where, block, "name"), "arguments": block.get("input")}
    if not isinstance(function["arguments"], dict):
        raise MessageError(f"{where}.input must be an object")
    return {"id": text_of(where, block, "id"), "type": "function", "function": function}


def _result(
    where: str,
    given: Mapping[str, Any],
    images: list[dict[str, Any]],
    parts_of: Callable[[str, dict[str, Any]], list[dict[str, Any]]],
    notes: Notes,
) -> dict[str, Any]:
    """A tool's message; ``images`` get those of the result, each behind the name of its call."""
    block = _checked(where, given, notes)
    id = text_of(where, block, "tool_use_id")
    content = block.get("content", "")
    if isinstance(content, list):
        texts = []
        for index, each in enumerate(content):
            place = f"{where}.content[{index}]"
            if _kind(place, each, SHOWN, notes) is None:
                continue
            for part in parts_of(place, each):
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    texts.append("(an image, which follows)")
                    images += [text_part(f"The image in the result of {id}:"), part]
        content = "\n".join(texts)
    if not isinstance(content, str):
        raise MessageError(f"{where}.content must be text or a list of blocks")
    if block.get("is_error"):  # messages to models have no field for it
        content = f"Error: {content}"
    return {"role": "tool", "tool_call_id": id, "content": content}
