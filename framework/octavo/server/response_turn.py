"""One turn of a conversation of /v1/responses: what a request adds to what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import MessageError
from octavo.params import shown
from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.protocol.kept_responses import as_items
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.response_items import input_messages
from octavo.server.protocol.response_tools import ResponseTools, read_tools
from octavo.server.protocol.responses import ResponseRequest
from octavo.server.response_store import History, NotKeptError


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request with the conversation that it goes on from."""

    owner: str
    items: list[dict[str, Any]]
    """Its own input."""
    history: History | None
    messages: list[dict[str, Any]]
    """All that the model reads, as a chat."""
    tools: ResponseTools


async def read_turn(
    server: ServerContext, owner: str, request: ResponseRequest, notes: Notes
) -> Turn:
    """Read a request's input and tools; raises for what is not kept."""
    tools = read_tools(request.tools, request.tool_choice, notes)
    history = None
    if request.previous_response_id is not None:
        history = await _history(server, owner, request.previous_response_id)
    items = as_items(request.input)
    items = [await _resolved(server, owner, place, item) for place, item in enumerate(items)]
    before = () if history is None else history.items
    return Turn(
        owner=owner,
        items=items,
        history=history,
        messages=input_messages(items, request.instructions, notes, before),
        tools=tools,
    )


async def _history(server: ServerContext, owner: str, id: str) -> History:
    store = server.responses
    most = int(server.config.limits.max_body_mib * 2**20)
    try:
        if store is None:
            raise NotKeptError("this server keeps no responses (--max-stored-responses 0)")
        return await store.history(owner, id, most)
    except NotKeptError as error:
        raise HttpError(
            400,
            f"previous_response_id: {error}; send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None


async def _resolved(
    server: ServerContext, owner: str, place: int, item: dict[str, Any]
) -> dict[str, Any]:
    """The item that a reference stands for, which clients send in the place of what is kept."""
    id = item.get("id")
    if item.get("type") not in ("item_reference", None) or not isinstance(id, str):
        return item
    if item.get("type") is None and item.keys() != {"id"}:
        return item  # a message
    found = None if server.responses is None else await server.responses.item(owner, id)
    if found is None:
        raise MessageError(
            f"input[{place}] refers to the item {shown(id)}, which is not kept; send it whole"
        )
    return found
