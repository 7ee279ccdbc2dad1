"""/v1/responses/{id} and what is below it: answers that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from octavo.server.apis.responses.body import Response
from octavo.server.apis.responses.kept_body import (
    Deleted,
    InputItems,
    PageQuery,
    ShowQuery,
    listed_items,
    page_of,
)
from octavo.server.apis.responses.store import Kept
from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import EventStream, Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.wording import shown
from octavo_registry.routes import Endpoint

PATH: Final = "/v1/responses/{id}"
Query = TypeVar("Query", bound=msgspec.Struct)


class KeptResponseRoutes:
    """Shows, cancels and deletes answers; each is its key's alone."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of one answer."""
        made = self._server.endpoint
        show = operation(
            "Show an answer that is kept", reply=Response, streams=True, query=ShowQuery
        )
        cancel = operation("End an answer that is made in the background", reply=Response)
        items = operation("List what an answer answers", reply=InputItems, query=PageQuery)
        drop = operation("Delete an answer", reply=Deleted)
        return [
            made("GET", PATH, self._show, show),
            made("POST", f"{PATH}/cancel", self._cancel, cancel, read=None),
            made("DELETE", PATH, self._delete, drop),
            made("GET", f"{PATH}/input_items", self._items, items),
        ]

    async def _show(self, exchange: Exchange) -> Reply | EventStream:
        query = _read_query(exchange.query, ShowQuery)
        kept = await self._kept(exchange)
        if not query.stream:
            return Reply(kept.response)
        if not kept.streams or self._server.runs is None:
            raise HttpError(
                400, "stream: there are events of answers made with background and stream alone",
                param="stream",
            )  # fmt: skip
        id = exchange.path_params["id"]
        return EventStream(
            self._server.runs.follow(exchange.owner, id, query.starting_after), end=b""
        )

    async def _cancel(self, exchange: Exchange) -> Reply:
        kept, store = await self._kept(exchange), self._server.responses
        if not msgspec.json.decode(kept.response)["background"]:
            raise HttpError(400, "only answers that are made in the background can be cancelled")
        if kept.is_active and store is not None:
            id = exchange.path_params["id"]
            kept = await store.settle(exchange.owner, id, status="cancelled") or kept
        return Reply(kept.response)

    async def _items(self, exchange: Exchange) -> Reply:
        query = _read_query(exchange.query, PageQuery)
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


def _read_query(query: dict[str, str], kind: type[Query]) -> Query:
    given: dict[str, Any] = {name: query[name] for name in kind.__struct_fields__ if name in query}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise HttpError(400, f"{place.strip('`')}: {text}", param=place.strip("`")) from None


def _not_kept(id: str) -> HttpError:
    return HttpError(
        404,
        f"no response of the id {shown(id)} is kept: it was not stored, is deleted, or has made "
        "place for newer ones",
    )
