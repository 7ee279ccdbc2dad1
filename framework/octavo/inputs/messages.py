"""Chat messages and tools, checked and made plain before a template sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from octavo.errors import MessageError, PromptError
from octavo.inputs.foreign_template import ForeignTemplate
from octavo.inputs.media_parts import PARTS, modality_of
from octavo.inputs.prompt import check_modality
from octavo.inputs.template import ChatTemplate
from octavo.wording import shown
from octavo_registry.model import ModelCapabilities

Message = Mapping[str, Any]

UNREADABLE: Final = "INVALID_JSON"
"""The key under which arguments stand that are no object, as Anthropic advises."""
_TEXT_KEYS = {"text": "text", "refusal": "refusal"}
"""Part types that are text, and the key that holds it."""
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Names that clients use for the same thing; templates read the first or the second."""


def plain_data(name: str, value: Any, place: str = "") -> Any:
    """Copy into dicts, lists and scalars: a template must not reach methods of richer objects."""
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(
            f"{name}{place} must be made of JSON types: {error}", param=name
        ) from error


def check_messages(
    messages: Sequence[Message], capabilities: ModelCapabilities
) -> list[dict[str, Any]]:
    """Return plain copies; errors name the message's index and the key."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise MessageError("messages must be a list with at least one message")
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise MessageError(f"{where} must be a dict, not {type(message).__name__}")
        copy = plain_data("messages", dict(message), f"[{index}]")
        _check_role_and_content(where, copy, capabilities)
        _parse_tool_calls(where, copy)
        _name_reasoning(copy)
        plain.append(copy)
    return plain


def fit_contents(
    messages: list[dict[str, Any]],
    template: ChatTemplate | ForeignTemplate,
    media_texts: Mapping[str, str],
    capabilities: ModelCapabilities,
) -> None:
    """Change contents in place to the form that the template takes, where it takes but one.

    ``media_texts`` stand for media, by modality, in a template that takes text alone.
    """
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and not template.takes_parts:
            message["content"] = "\n".join(
                _as_text(part, media_texts, capabilities) for part in content
            )
        elif isinstance(content, str) and template.takes_parts and not template.takes_text:
            message["content"] = [{"type": "text", "text": content}]


def _as_text(
    part: Mapping[str, Any], media_texts: Mapping[str, str], capabilities: ModelCapabilities
) -> str:
    kind = part["type"]
    if kind in _TEXT_KEYS:
        text: str = part[_TEXT_KEYS[kind]]
        return text
    if kind not in media_texts:
        advice = "give chat_template"
        if capabilities.transcriber is not None:  # as Whisper, of which no chat is to be had
            advice = "send speech to /v1/audio/transcriptions"
        raise MessageError(f"the chat template has no place for {kind}; {advice}")
    return media_texts[kind]


def fit_arguments(messages: list[dict[str, Any]], template: ChatTemplate | ForeignTemplate) -> None:
    """Write the arguments of calls as JSON text for a template that takes them so."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    if calls and not template.takes_objects:
        for function in calls:
            if not isinstance(function.get("arguments", ""), str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)


def fit_roles(messages: list[dict[str, Any]], template: ChatTemplate | ForeignTemplate) -> None:
    """Make developers systems for a template that has none; raise for what it would not show."""
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in ROLES and not template.mentions(role):
            raise MessageError(
                f"messages[{index}].role={shown(role)} is not known to the chat template; "
                f"known: {', '.join(sorted(ROLES))}"
            )
        if role == "developer" and not template.mentions(role):
            message["role"] = "system"


def check_dicts(name: str, values: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    """Return plain copies of tools or documents; None stays None."""
    if values is None:
        return None
    if not isinstance(values, (list, tuple)):
        raise PromptError(
            f"{name} must be a list of dicts, not {type(values).__name__}", param=name
        )
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise PromptError(
                f"{name}[{index}] must be a dict, not {type(value).__name__}", param=name
            )
    return [plain_data(name, dict(value), f"[{index}]") for index, value in enumerate(values)]


def _check_role_and_content(
    where: str, message: dict[str, Any], capabilities: ModelCapabilities
) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise MessageError(
            f"{where}.role={shown(role)} must be a name such as 'user' or 'assistant'"
        )
    if content is None:
        if not message.get("tool_calls"):
            raise MessageError(f"{where}.content is missing; only tool_calls can stand without it")
    elif isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(f"{where}.content[{index}]", part, capabilities)
    elif not isinstance(content, str):
        raise MessageError(
            f"{where}.content must be text or a list of parts, not {type(content).__name__}"
        )


def _check_part(where: str, part: Any, capabilities: ModelCapabilities) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise MessageError(f"{where} must be a dict with a 'type', such as 'text'")
    modality = modality_of(part, capabilities.modalities)
    if modality is not None:
        try:
            check_modality(modality, capabilities)
        except PromptError as error:
            raise MessageError(f"{where}: {error}") from error
        if kind == modality and len(part) == 1:
            return
        raise MessageError(f"{where}: {kind} cannot be given here, only in a chat")
    if kind not in _TEXT_KEYS:
        known = ", ".join((*_TEXT_KEYS, *PARTS))
        raise MessageError(f"{where}.type={shown(kind)} is not known; known: {known}")
    key = _TEXT_KEYS[kind]
    if not isinstance(part.get(key), str):
        raise MessageError(f"{where}.{key}={shown(part.get(key))} must be text")


def _parse_tool_calls(where: str, message: dict[str, Any]) -> None:
    """Arguments come as a JSON string over the API; templates expect what it stands for."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise MessageError(f"{where}.tool_calls must be a list, not {type(calls).__name__}")
    for index, call in enumerate(calls):
        place = f"{where}.tool_calls[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MessageError(f"{place} must be a dict with a 'function' that has a 'name'")
        function["arguments"] = as_object(function.get("arguments"))


def as_object(arguments: Any) -> dict[str, Any]:
    """Arguments of an earlier call as templates expect them; none are an empty object.

    What stands for no object, as a model that was cut off leaves it, is the text of an object's
    only key: each later turn of the conversation brings it again, so that it must be readable.
    """
    read = arguments
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            return {UNREADABLE: arguments}
    if read is None:
        return {}
    if isinstance(read, dict):
        return read
    return {UNREADABLE: arguments if isinstance(arguments, str) else json.dumps(arguments)}


def _name_reasoning(message: dict[str, Any]) -> None:
    given = [message[key] for key in _REASONING_KEYS if message.get(key) is not None]
    if given:
        message["reasoning_content"] = given[0]
        message.setdefault("thinking", given[0])
