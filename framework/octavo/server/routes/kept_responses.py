"""/v1/responses/{id} and what is below it: answers that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.params import shown
from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.exchange import Exchange, Reply, encode
from octavo.server.openapi import operation
from octavo.server.protocol.kept_responses import (
    Deleted,
    InputItems,
    PageQuery,
    listed_items,
    page_of,
)
from octavo.server.protocol.responses import Response
from octavo.server.response_store import Kept
from octavo_registry.routes import Endpoint

PATH = "/v1/responses/{id}"


class KeptResponseRoutes:
    """Shows and deletes answers; each is its key's alone."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of one answer."""
        made = self._server.endpoint
        show = operation("Show an answer that is kept", reply=Response)
        items = operation("List what an answer answers", reply=InputItems)
        drop = operation("Delete an answer", reply=Deleted)
        return [
            made("GET", PATH, self._show, show),
            made("DELETE", PATH, self._delete, drop),
            made("GET", f"{PATH}/input_items", self._items, items),
        ]

    async def _show(self, exchange: Exchange) -> Reply:
        return Reply((await self._kept(exchange)).response)

    async def _items(self, exchange: Exchange) -> Reply:
        query = _page_query(exchange.query)
        kept = await self._kept(exchange)
        return Reply(encode(page_of(listed_items(kept.input, exchange.path_params["id"]), query)))

    async def _delete(self, exchange: Exchange) -> Reply:
        id, store = exchange.path_params["id"], self._server.responses
        if store is None or not await store.delete(exchange.owner, id):
            raise _not_kept(id)
        return Reply(encode(Deleted(id=id)))

    async def _kept(self, exchange: Exchange) -> Kept:
        id, store = exchange.path_params["id"], self._server.responses
        kept = None if store is None else await store.find(exchange.owner, id)
        if kept is None:
            raise _not_kept(id)
        return kept


def _page_query(query: dict[str, str]) -> PageQuery:
    given: dict[str, Any] = {
        name: query[name] for name in PageQuery.__struct_fields__ if name in query
    }
    try:
        return msgspec.convert(given, PageQuery, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise HttpError(400, f"{place.strip('`')}: {text}", param=place.strip("`")) from None


def _not_kept(id: str) -> HttpError:
    return HttpError(
        404,
        f"no response of the id {shown(id)} is kept: it was not stored, is deleted, or has made "
        "place for newer ones",
    )
