"""The messages of a chat body, in which nothing is to be ignored either."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

from octavo.errors import MessageError
from octavo.server.protocol.fields import unknown

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 16_384
"""Of all messages together; to look at so many takes about 20 ms."""
_EVERY: Final = frozenset(("role", "content", "name"))
_ASSISTANT: Final = _EVERY | {
    "refusal",
    "tool_calls",
    "reasoning",
    "reasoning_content",
    "thinking",
    "annotations",
    "audio",
    "function_call",
}
_KEYS: Final = {
    "assistant": _ASSISTANT,
    "tool": _EVERY | {"tool_call_id"},
    **dict.fromkeys(("system", "developer", "user", "function"), _EVERY),
}
"""Of a role; others, which a template may know, have any of these."""
_ANY: Final = _ASSISTANT | {"tool_call_id"}
_NOT_TAKEN: Final = ("annotations", "audio", "function_call")
"""Keys that answers have, which are sent back, and which only their empty values may have here."""
_CALL: Final = frozenset(("id", "type", "function", "index"))
_FUNCTION: Final = frozenset(("name", "arguments"))
CACHE_HINTS: Final = frozenset(("prompt_cache_breakpoint", "cache_control"))
"""Keys of parts that only say what to keep: all prefixes are kept here."""
_PARTS: Final = {"text": {"type", "text"} | CACHE_HINTS, "refusal": {"type", "refusal"}}
"""Keys by a part's type; other types are refused by name where the model is known."""


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without nulls and hints; raises for what is not known."""
    check_size("messages", messages)
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def check_size(name: str, messages: list[dict[str, Any]]) -> None:
    """Raise for more messages or parts than may be looked at on the event loop."""
    parts = 0
    for message in messages[:MAX_MESSAGES]:
        content = message.get("content")
        parts += len(content) if isinstance(content, list) else 0
    if len(messages) > MAX_MESSAGES or parts > MAX_PARTS:
        raise MessageError(f"{name}: at most {MAX_MESSAGES} messages with {MAX_PARTS} parts in all")


def check_keys(where: str, value: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    """Raise for a key that is not known; the error's param is where the path begins."""
    for key in value:
        if key not in known:
            field = where.partition("[")[0].partition(".")[0]
            raise unknown(key, f"is no key of {where}", sorted(known), param=field)


def check_hints(where: str, given: Mapping[str, Any]) -> None:
    """Raise for what cannot say what to keep."""
    for key in CACHE_HINTS.intersection(given):
        if not isinstance(given[key], dict):
            raise MessageError(f"{where}.{key} must be an object")


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what clients write for "not given"."""
    return {key: each for key, each in value.items() if each is not None}


def _message(where: str, given: dict[str, Any]) -> dict[str, Any]:
    message = without_nulls(given)
    role = message.get("role")
    check_keys(where, message, _KEYS.get(role, _ANY) if isinstance(role, str) else _ANY)
    for key in _NOT_TAKEN:
        if message.pop(key, None):
            raise MessageError(f"{where}.{key} is not taken; leave it out")
    if isinstance(message.get("refusal"), str):
        if message.get("content"):
            raise MessageError(f"{where}.refusal stands in the content's place; give one")
        message["content"] = message.pop("refusal")
    elif "refusal" in message:
        raise MessageError(f"{where}.refusal must be text")
    if isinstance(message.get("content"), list):
        message["content"] = _parts(f"{where}.content", message["content"])
    if "tool_calls" in message:
        _check_calls(f"{where}.tool_calls", message["tool_calls"])
    for key in ("name", "tool_call_id", "reasoning", "reasoning_content", "thinking"):
        if not isinstance(message.get(key, ""), str):
            raise MessageError(f"{where}.{key} must be text")
    return message


def _parts(where: str, parts: list[Any]) -> list[Any]:
    if not parts:
        raise MessageError(f"{where} is an empty list")
    made = []
    for index, part in enumerate(parts):
        if isinstance(part, dict):
            part = without_nulls(part)
            kind = part.get("type")
            known = _PARTS.get(kind) if isinstance(kind, str) else None
            if known is not None:
                check_keys(f"{where}[{index}]", part, known)
            check_hints(f"{where}[{index}]", part)
            part = {key: each for key, each in part.items() if key not in CACHE_HINTS}
        made.append(part)
    return made


def _check_calls(where: str, calls: Any) -> None:
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            check_keys(f"{where}[{index}]", call, _CALL)
            if call.get("type", "function") != "function":
                raise MessageError(f"{where}[{index}].type must be 'function'")
            for key, kind, wanted in (("id", str, "text"), ("index", int, "an integer")):
                if not isinstance(call.get(key), (kind, NoneType)):
                    raise MessageError(f"{where}[{index}].{key} must be {wanted}")
            if isinstance(call.get("function"), dict):
                check_keys(f"{where}[{index}].function", call["function"], _FUNCTION)
