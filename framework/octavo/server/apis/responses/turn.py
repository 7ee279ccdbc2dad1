"""One turn of a conversation of /v1/responses: what a request adds to what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import MessageError
from octavo.inputs import Conversation
from octavo.inputs.processor_kwargs import asked_by_request
from octavo.server.apis.responses.body import ResponseRequest
from octavo.server.apis.responses.items import input_messages
from octavo.server.apis.responses.kept_body import as_items
from octavo.server.apis.responses.store import History, NotKeptError
from octavo.server.apis.responses.tools import ResponseTools, chat_tool_choice, read_tools
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.protocol.conversation import check_size
from octavo.server.protocol.notes import Notes
from octavo.wording import shown


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

    def conversation(
        self, request: ResponseRequest, notes: Notes, template_kwargs: dict[str, Any]
    ) -> Conversation:
        """What the model reads of this turn's request; what has no effect is noted."""
        return Conversation(
            messages=self.messages,
            tools=self.tools.functions or None,
            tool_choice=chat_tool_choice(request.tool_choice, notes),
            parallel_tool_calls=request.parallel_tool_calls,
            chat_template_kwargs=template_kwargs,
            mm_processor_kwargs=asked_by_request(
                request.mm_processor_kwargs, request.media_io_kwargs
            ),
            strict=True,
        )


async def read_turn(
    server: ServerContext, owner: str, request: ResponseRequest, notes: Notes
) -> Turn:
    """Read a request's input and tools; raises for what is not kept."""
    tools = read_tools(request.tools, request.tool_choice, notes)
    history = None
    if request.previous_response_id is not None:
        history = await _history(server, owner, request.previous_response_id)
    items = await _resolved(server, owner, as_items(request.input))
    before = () if history is None else history.items
    return Turn(
        owner=owner,
        items=items,
        history=history,
        messages=input_messages(items, request.instructions, notes, before, server.modalities),
        tools=tools,
    )


async def _history(server: ServerContext, owner: str, id: str) -> History:
    store = server.responses
    try:
        if store is None:
            raise NotKeptError("this server keeps no responses (--max-stored-responses 0)")
        return await store.history(owner, id, _most_bytes(server))
    except NotKeptError as error:
        raise HttpError(
            400,
            f"previous_response_id: {error}; send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None


async def _resolved(
    server: ServerContext, owner: str, items: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The items, and what references stand for, which clients send in the place of what is kept.

    A few bytes may refer to many, so these are bounded together as a body is.
    """
    check_size("input", items)
    made = []
    room = _most_bytes(server)
    for place, item in enumerate(items):
        id = item.get("id")
        # Without a type, an item that has more than an id is a message.
        is_reference = item.get("type") == "item_reference" or item.keys() == {"id"}
        if not is_reference or not isinstance(id, str):
            made.append(item)
            continue
        found = None if server.responses is None else await server.responses.item(owner, id)
        if found is None:
            raise MessageError(
                f"input[{place}] refers to the item {shown(id)}, which is not kept; send it whole"
            )
        room -= len(found)
        if room < 0:
            raise MessageError(
                f"input: the items that it refers to have more than {_most_bytes(server)} bytes"
            )
        made.append(msgspec.json.decode(found))
    return made


def _most_bytes(server: ServerContext) -> int:
    """Most bytes that a request may read of what is kept."""
    return int(server.config.limits.max_body_mib * 2**20)
