"""What the routes for kept answers give: items of an input as a list, a deletion, a count."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
}


class Deleted(msgspec.Struct, kw_only=True):
    """An answer is not kept any more."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, kw_only=True):
    """What a request would cost before its answer."""

    input_tokens: int
    object: str = "response.input_tokens"
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class InputItems(msgspec.Struct, kw_only=True):
    """A page of what an answer answers."""

    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


class PageQuery(msgspec.Struct, kw_only=True):
    """Which page of the items is wanted."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    after: str | None = None
    """An item's id; the page begins behind it."""


class ShowQuery(msgspec.Struct, kw_only=True):
    """How an answer is to be shown."""

    stream: bool = False
    starting_after: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    """The number of the last event that is known."""


def page_of(items: list[dict[str, Any]], query: PageQuery) -> InputItems:
    """The page; one after an item that is not there is empty."""
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        begin = ids.index(query.after) + 1 if query.after in ids else len(ids)
        ordered = ordered[begin:]
    data = ordered[: query.limit]
    return InputItems(
        data=data,
        has_more=len(data) < len(ordered),
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
    )


def as_items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An input as items; a text is a user's message."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given


def listed_items(items: list[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """The items with the keys that a list's have, where the client left them out."""
    return [_listed(item, f"{response_id}_{place}") for place, item in enumerate(items)]


def _listed(given: dict[str, Any], name: str) -> dict[str, Any]:
    kind = given.get("type") or "message"
    item = {**given, "type": kind}
    item["id"] = given.get("id") or f"{_PREFIXES.get(kind, 'item')}_{name}"
    if kind != "reasoning":
        item["status"] = given.get("status") or "completed"
    else:
        item.setdefault("summary", [])
    if kind == "message":
        is_answer = item.get("role") == "assistant"
        content = item.get("content")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        item["content"] = [_listed_part(part, is_answer) for part in parts or ()]
    return item


def _listed_part(part: dict[str, Any], is_answer: bool) -> dict[str, Any]:
    if part.get("type") in ("input_text", "output_text"):
        if is_answer:
            return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
        return {**part, "type": "input_text"}
    if part.get("type") == "input_image":
        return {"detail": "auto", **part}
    return part
