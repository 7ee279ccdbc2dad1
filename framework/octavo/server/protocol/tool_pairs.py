"""Calls of tools and their results, which belong together, as each API refuses what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from octavo.server.http.errors import HttpError
from octavo.server.protocol.conversation import check_size
from octavo.wording import shown

MAX_NAMED: Final = 8
"""Ids in a message."""


def check_messages(messages: Sequence[Mapping[str, Any]], *, is_continued: bool) -> None:
    """Raise unless results follow the calls that they answer, as in OpenAI's chats.

    ``is_continued``: the last message goes on, so nothing can have answered its calls. Calls and
    results without ids belong together by their order.
    """
    check_size("messages", messages)
    called: Counter[str | None] = Counter()
    """The last calls that have no result yet."""
    answered: set[str | None] = set()
    caller = 0
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            id = _id(message.get("tool_call_id"))
            if _take(called, id):
                answered.add(id)
            elif id not in answered:
                raise HttpError(
                    400,
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'.",
                    param=f"messages.[{place}].role",
                )
            continue
        _check_answered(called, caller)
        called, answered, caller = Counter(_ids(message)), set(), place
    if not is_continued:
        _check_answered(called, caller)


def check_items(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each call has its result somewhere behind it, as in OpenAI's responses.

    ``messages`` are what the items have become.
    """
    called: dict[str | None, Any] = {}
    answered: set[str | None] = set()
    for message in messages:
        called |= dict.fromkeys(_ids(message))
        if message.get("role") == "tool":
            id = _id(message.get("tool_call_id"))
            if id not in called:
                told = f"No tool call found for function call output with call_id {_plain(id)}."
                raise HttpError(400, told, param="input")
            answered.add(id)
    for id in called:
        if id not in answered:
            told = f"No tool output found for function call {_plain(id)}."
            raise HttpError(400, told, param="input")


def check_blocks(messages: Sequence[Mapping[str, Any]], *, is_continued: bool) -> None:
    """Raise unless results stand in the message behind the calls, as in Anthropic's messages."""
    called: dict[str | None, Any] = {}
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
        answered = set(results.values())
        _check_used([id for id in called if id not in answered], place - 1)
        called = dict.fromkeys(id for _, id in _blocks(message, "tool_use", "id"))
    if not is_continued:
        _check_used(called, len(messages) - 1)


def _take(called: Counter[str | None], id: str | None) -> bool:
    """Take away the call that a result answers; whether there is one."""
    wanted = next(iter(called), None) if id is None else id
    found = wanted if wanted in called else None
    if found not in called:
        return False
    called[found] -= 1
    if not called[found]:
        del called[found]
    return True


def _check_answered(called: Counter[str | None], place: int) -> None:
    if called:
        raise HttpError(
            400,
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            f"{_listed(called.elements())}",
            param=f"messages.[{place}].role",
        )


def _check_used(called: Iterable[str | None], place: int) -> None:
    ids = list(called)
    if ids:
        raise HttpError(
            400,
            f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {_listed(ids)}. Each `tool_use` block must have a corresponding "
            "`tool_result` block in the next message.",
        )


def _ids(message: Mapping[str, Any]) -> list[str | None]:
    """The ids of a message's calls."""
    calls = message.get("tool_calls")
    given = calls if isinstance(calls, list) else ()
    return [_id(each.get("id")) for each in given if isinstance(each, dict)]


def _id(given: Any) -> str | None:
    """An id; what is malformed is told of elsewhere."""
    return given if given is None or isinstance(given, str) else shown(given)


def _blocks(message: Mapping[str, Any], kind: str, name: str) -> Iterator[tuple[int, str | None]]:
    content = message.get("content")
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if isinstance(block, dict) and block.get("type") == kind:
            yield index, _id(block.get(name))


def _listed(ids: Iterable[str | None]) -> str:
    first = [*islice(ids, MAX_NAMED + 1)]
    more = ", ..." if len(first) > MAX_NAMED else ""
    return ", ".join(map(_plain, first[:MAX_NAMED])) + more


def _plain(id: Any) -> str:
    return id[:80] if isinstance(id, str) else shown(id)
