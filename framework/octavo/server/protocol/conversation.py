"""The messages and tools of a chat body, of which nothing is ignored without a word either."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial
from types import NoneType
from typing import Any, Final

import msgspec

from octavo.errors import MessageError
from octavo.inputs.media_parts import DETAILS, PARTS
from octavo.inputs.messages import UNREADABLE, as_object
from octavo.server.protocol.documents import file_text
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.tool_media import EVERY_MODALITY, given_by_tool
from octavo.tools.choice import check_count

MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 16_384
"""Most parts of all messages together; to look at so many takes about 20 ms."""
_EVERY: Final = frozenset(("role", "content", "name"))
_ASSISTANT: Final = _EVERY | {
    "refusal",
    "tool_calls",
    "reasoning",
    "reasoning_content",
    "thinking",
    "audio",
    "function_call",
}
_KEYS: Final = {
    "assistant": _ASSISTANT,
    "tool": _EVERY | {"tool_call_id"},
    **dict.fromkeys(("system", "developer", "user", "function"), _EVERY),
}
"""Keys by role; other roles, which a template may know, have any of these."""
_OF_TOOLS: Final = ("tool", "function")
_ANY: Final = _ASSISTANT | {"tool_call_id"}
_NOTED: Final = _ANY | {"annotations"}
"""Keys without effect, where they are not a role's: those of answers that are sent back."""
_NOT_TAKEN: Final = ("audio", "function_call")
"""Keys that answers have, which are sent back, and which only their empty values may have here."""
_CALL: Final = frozenset(("id", "type", "function", "index"))
_FUNCTION: Final = frozenset(("name", "arguments"))
_TOOL: Final = frozenset(("type", "function"))
_TOOL_FUNCTION: Final = frozenset(("name", "description", "parameters", "strict"))
TOOL_HINTS: Final = frozenset(
    ("defer_loading", "allowed_callers", "eager_input_streaming", "input_examples",
     "output_schema", "cache_control", "async")
)  # fmt: skip
"""Keys of tools that only say when or how a tool is shown: here all see it at once."""
TOOLS_ELSEWHERE: Final = frozenset(
    ("apply_patch", "code_interpreter", "computer", "computer_use", "computer_use_preview",
     "custom", "file_search", "image_generation", "local_shell", "mcp", "shell", "tool_search",
     "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
)  # fmt: skip
"""Types of tools that OpenAI's APIs have and this server cannot run."""
LEFT_OUT: Final = "cannot run here and was left out"
CACHE_HINTS: Final = frozenset(("prompt_cache_breakpoint", "cache_control"))
"""Keys of parts that only say what to keep: all prefixes are kept here."""
_PARTS: Final = {
    "text": {"type", "text"} | CACHE_HINTS,
    "refusal": {"type", "refusal"} | CACHE_HINTS,
    "file": {"type", "file"} | CACHE_HINTS,
    **{kind: {"type", kind, "uuid"} | CACHE_HINTS for kind in PARTS},
}
"""Keys by a part's type; other types are refused by name where the model is known."""
_FILE: Final = frozenset(("file_data", "file_id", "filename"))
_MEDIA: Final = {
    **{kind: {"url", "detail"} for kind in PARTS if kind.endswith("_url")},
    "input_audio": {"data", "format"},
}
"""Keys of what such a part holds, where it is an object."""


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def plain_messages(
    messages: list[dict[str, Any]],
    notes: Notes,
    modalities: Collection[str] = EVERY_MODALITY,
) -> list[dict[str, Any]]:
    """Return the messages without nulls, hints, and keys that have no effect.

    ``modalities`` are the model's.
    """
    check_size("messages", messages)
    return [
        _message(f"messages[{index}]", message, notes, modalities)
        for index, message in enumerate(messages)
    ]


def plain_tools(tools: list[dict[str, Any]] | None, notes: Notes) -> list[dict[str, Any]] | None:
    """Return the tools without keys that have no effect; the rest is checked elsewhere."""
    if tools is None:
        return None
    check_count(len(tools))
    made = []
    for index, given in enumerate(tools):
        kind = given.get("type")
        if isinstance(kind, str) and kind in TOOLS_ELSEWHERE:
            notes.add(f"tools[{index}]:{kind}", LEFT_OUT)
            continue
        known = given.keys() if kind not in (None, "function") else _TOOL
        tool = read_keys(f"tools[{index}]", given, known, notes, TOOL_HINTS)
        function = tool.get("function")
        if isinstance(function, dict):
            place = f"tools[{index}].function"
            tool["function"] = read_keys(place, function, _TOOL_FUNCTION, notes, TOOL_HINTS)
        made.append(tool)
    return made


def plain_tool_choice(choice: Any, notes: Notes) -> Any:
    """Return the choice without keys that have no effect; the rest is checked elsewhere."""
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        return choice
    kind = choice["type"]
    made = read_keys("tool_choice", choice, {"type", kind}, notes)
    within = made.get(kind)
    if kind == "function":
        made[kind] = _chosen("tool_choice.function", within, notes)
    elif kind == "allowed_tools" and isinstance(within, dict):
        limits = read_keys("tool_choice.allowed_tools", within, {"mode", "tools"}, notes)
        if isinstance(limits.get("tools"), list):
            limits["tools"] = [plain_tool_choice(tool, notes) for tool in limits["tools"]]
        made[kind] = limits
    return made


def _chosen(where: str, function: Any, notes: Notes) -> Any:
    """The name of a function that is chosen; a description of it may be sent again."""
    if not isinstance(function, dict):
        return function
    return read_keys(where, function, {"name"}, notes, _TOOL_FUNCTION)


def check_size(name: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise for more messages or parts than may be looked at on the event loop."""
    parts = 0
    for message in messages[:MAX_MESSAGES]:
        content = message.get("content")
        parts += len(content) if isinstance(content, list) else 0
    if len(messages) > MAX_MESSAGES or parts > MAX_PARTS:
        raise MessageError(f"{name}: at most {MAX_MESSAGES} messages with {MAX_PARTS} parts in all")


def read_keys(
    where: str,
    given: Mapping[str, Any],
    known: Set[str],
    notes: Notes,
    noted: Set[str] = frozenset(),
) -> dict[str, Any]:
    """Return the object without nulls and without keys that have no effect, which are noted.

    ``noted`` keys are those that some API documents; empty, they ask for nothing.
    """
    made = {}
    for key, value in given.items():
        if value is None:
            continue
        if key in known:
            made[key] = value
        elif key not in noted:
            notes.unknown(key, known, where)
        elif value:
            notes.add(f"{where}.{key}")
    return made


def read_media(
    where: str, given: Mapping[str, Any], known: Set[str], notes: Notes
) -> dict[str, Any]:
    """The object that a part of media holds; a detail that nobody knows is noted, too."""
    made = read_keys(where, given, known, notes)
    if made.get("detail", DETAILS[0]) not in DETAILS:
        notes.add(f"{where}.detail")
        del made["detail"]
    return made


def text_of(where: str, given: Mapping[str, Any], key: str) -> str:
    """What stands under the key, which must be text."""
    text = given.get(key)
    if not isinstance(text, str):
        raise MessageError(f"{where}.{key} must be text")
    return text


def check_hints(where: str, given: Mapping[str, Any]) -> None:
    """Raise for what cannot say what to keep."""
    for key in CACHE_HINTS.intersection(given):
        if not isinstance(given[key], dict):
            raise MessageError(f"{where}.{key} must be an object")


def _message(
    where: str, given: dict[str, Any], notes: Notes, modalities: Collection[str]
) -> dict[str, Any]:
    role = given.get("role")
    known = _KEYS.get(role, _ANY) if isinstance(role, str) else _ANY
    message = read_keys(where, given, known, notes, _NOTED)
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
        shown = modalities if role in _OF_TOOLS else None
        message["content"] = _parts(f"{where}.content", message["content"], notes, shown)
    if isinstance(message.get("tool_calls"), list):
        place = f"{where}.tool_calls"
        calls = enumerate(message["tool_calls"])
        message["tool_calls"] = [_call(f"{place}[{i}]", call, notes) for i, call in calls]
    for key in ("name", "tool_call_id", "reasoning", "reasoning_content", "thinking"):
        if not isinstance(message.get(key, ""), str):
            raise MessageError(f"{where}.{key} must be text")
    return message


def _parts(
    where: str, parts: list[Any], notes: Notes, modalities: Collection[str] | None
) -> list[Any]:
    """The parts; ``modalities`` are those that a tool may show, None: it is none of a tool's."""
    if not parts:
        raise MessageError(f"{where} is an empty list")
    made: list[Any] = []
    for index, part in enumerate(parts):
        read = partial(_part, f"{where}[{index}]", part, notes)
        if modalities is None:
            made += read()
        else:
            made += given_by_tool(f"{where}[{index}]", read, modalities, notes)
    return made


def _part(where: str, part: Any, notes: Notes) -> list[Any]:
    if not isinstance(part, dict):
        return [part]
    kind = part.get("type")
    known = _PARTS.get(kind) if isinstance(kind, str) else None
    part = read_keys(where, part, part.keys() if known is None else known, notes)
    if known is not None and kind in _MEDIA and isinstance(part.get(kind), dict):
        part[kind] = read_media(f"{where}.{kind}", part[kind], _MEDIA[kind], notes)
    check_hints(where, part)
    if kind == "file":
        part = {"type": "text", "text": _file(f"{where}.file", part.get("file"), notes)}
    return [{key: each for key, each in part.items() if key not in CACHE_HINTS}]


def _file(where: str, given: Any, notes: Notes) -> str:
    if not isinstance(given, dict):
        raise MessageError(f"{where} must be an object")
    return file_text(where, read_keys(where, given, _FILE, notes))


def _call(where: str, given: Any, notes: Notes) -> Any:
    if not isinstance(given, dict):
        return given
    call = read_keys(where, given, _CALL, notes)
    if call.get("type", "function") != "function":
        raise MessageError(f"{where}.type must be 'function'")
    for key, kind, wanted in (("id", str, "text"), ("index", int, "an integer")):
        if not isinstance(call.get(key), (kind, NoneType)):
            raise MessageError(f"{where}.{key} must be {wanted}")
    if isinstance(call.get("function"), dict):
        call["function"] = read_keys(f"{where}.function", call["function"], _FUNCTION, notes)
        note_arguments(f"{where}.function.arguments", call["function"].get("arguments"), notes)
    return call


def note_arguments(where: str, arguments: Any, notes: Notes) -> None:
    """Tell of a call's arguments that stand for no object."""
    try:
        _OBJECT.decode(arguments)
    except (msgspec.MsgspecError, TypeError, RecursionError):  # or is read by Python alone
        if UNREADABLE in as_object(arguments):
            notes.add(where, f"is no JSON object, and shown under the key {UNREADABLE!r}")
