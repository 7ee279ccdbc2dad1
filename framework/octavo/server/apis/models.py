"""/v1/models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.server.context import ServerContext
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo_registry.routes import Endpoint


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that requests may name."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    """The model that this is an adapter of."""
    max_model_len: int


class ModelList(msgspec.Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


class ModelRoutes:
    """Tells which models there are."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the list's endpoint and that of one model."""
        all_of_them = operation("List the models", reply=ModelList)
        one = operation("Show one model", reply=ModelCard)
        return [
            self._server.endpoint("GET", "/v1/models", self._list, all_of_them),
            self._server.endpoint("GET", "/v1/models/{id:path}", self._one, one),
        ]

    async def _list(self, exchange: Exchange) -> Reply:
        return Reply(encode(ModelList(list((await self._cards()).values()))))

    async def _one(self, exchange: Exchange) -> Reply:
        name = exchange.path_params["id"]
        card = (await self._cards()).get(name)
        if card is None:
            raise HttpError(
                404, f"the model {name[:128]!r} does not exist", param="model",
                code="model_not_found",
            )  # fmt: skip
        return Reply(encode(card))

    async def _cards(self) -> dict[str, ModelCard]:
        base = self._server.model_names[0]
        cards = {name: self._card(name, base) for name in self._server.model_names}
        for module in await self._server.adapters.listed():
            parent = module.base_model_name or base
            cards[module.name] = self._card(module.name, module.path, parent)
        return cards

    def _card(self, name: str, root: str, parent: str | None = None) -> ModelCard:
        return ModelCard(
            id=name,
            created=self._server.started,
            root=root,
            parent=parent,
            max_model_len=self._server.engine.max_model_len,
        )
