"""Calls of tools and their results, which belong together, as each API refuses what does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from octavo.params import shown
from octavo.server.errors import HttpError

MAX_NAMED: Final = 8
"""Ids in a message."""


def check_messages(messages: Sequence[Mapping[str, Any]], *, is_continued: bool) -> None:
    """Raise unless results follow the calls that they answer, as in OpenAI's chats.

    ``is_continued``: the last message goes on, so nothing can have answered its calls. Calls and
    results without ids belong together by their order.
    """
    called: list[Any] = []
    """Of the last calls, those without a result."""
    answered: list[Any] = []
    caller = 0
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            id = message.get("tool_call_id")
            found = next((each for each in called if each == id or None in (each, id)), called)
            if found is not called:
                called.remove(found)
                answered.append(id)
            elif id not in answered:
                raise HttpError(
                    400,
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'.",
                    param=f"messages.[{place}].role",
                )
            continue
        _check_answered(called, caller)
        called, answered, caller = _ids(message), [], place
    if not is_continued:
        _check_answered(called, caller)


def check_items(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each call has its result somewhere behind it, as in OpenAI's responses.

    ``messages`` are what the items have become.
    """
    called: list[Any] = []
    answered: list[Any] = []
    for message in messages:
        called += _ids(message)
        if message.get("role") == "tool":
            id = message.get("tool_call_id")
            if id not in called:
                told = f"No tool call found for function call output with call_id {_plain(id)}."
                raise HttpError(400, told, param="input")
            answered.append(id)
    for id in called:
        if id not in answered:
            told = f"No tool output found for function call {_plain(id)}."
            raise HttpError(400, told, param="input")


def check_blocks(messages: Sequence[Mapping[str, Any]], *, is_continued: bool) -> None:
    """Raise unless results stand in the message behind the calls, as in Anthropic's messages."""
    called: list[Any] = []
    for place, message in enumerate(messages):
        results = dict(_blocks(message, "tool_result", "tool_use_id"))
        for index, id in results.items():
            if id not in called:
                raise HttpError(
                    400,
                    f"messages.{place}.content.{index}: unexpected `tool_use_id` found in "
                    f"`tool_result` blocks: {_plain(id)}. Each `tool_result` block must have a "
                    "corresponding `tool_use` block in the previous message.",
                )
        _check_used([id for id in called if id not in results.values()], place - 1)
        called = [id for _, id in _blocks(message, "tool_use", "id")]
    if not is_continued:
        _check_used(called, len(messages) - 1)


def _check_answered(called: list[Any], place: int) -> None:
    if called:
        raise HttpError(
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{_listed(called)}",
            param=f"messages.[{place}].role",
        )


def _check_used(called: list[Any], place: int) -> None:
    if called:
        raise HttpError(
            400,
            f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {_listed(called)}. Each `tool_use` block must have a corresponding "
            "`tool_result` block in the next message.",
        )


def _ids(message: Mapping[str, Any]) -> list[Any]:
    """The ids of a message's calls; what is malformed is told of elsewhere."""
    calls = message.get("tool_calls")
    given = calls if isinstance(calls, list) else ()
    return [each.get("id") for each in given if isinstance(each, dict)]


def _blocks(message: Mapping[str, Any], kind: str, name: str) -> Iterator[tuple[int, Any]]:
    content = message.get("content")
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict) and block.get("type") == kind:
            yield index, block.get(name)


def _listed(ids: list[Any]) -> str:
    more = ", ..." if len(ids) > MAX_NAMED else ""
    return ", ".join(map(_plain, ids[:MAX_NAMED])) + more


def _plain(id: Any) -> str:
    return id[:80] if isinstance(id, str) else shown(id)
