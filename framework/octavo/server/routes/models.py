"""/v1/models."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.server.context import ServerContext
from octavo.server.errors import HttpError
from octavo.server.exchange import Exchange, Reply, encode
from octavo.server.openapi import operation
from octavo_registry.routes import Endpoint


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that requests may name."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
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
        return Reply(encode(ModelList(list(self._cards().values()))))

    async def _one(self, exchange: Exchange) -> Reply:
        name = exchange.path_params["id"]
        card = self._cards().get(name)
        if card is None:
            raise HttpError(
                404, f"the model {name[:128]!r} does not exist", param="model",
                code="model_not_found",
            )  # fmt: skip
        return Reply(encode(card))

    def _cards(self) -> dict[str, ModelCard]:
        server = self._server
        return {
            name: ModelCard(
                id=name,
                created=server.started,
                root=server.model_names[0],
                max_model_len=server.engine.max_model_len,
            )
            for name in server.model_names
        }
