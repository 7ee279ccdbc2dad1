"""/v1/load_lora_adapter and /v1/unload_lora_adapter, where the operator allows them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from octavo.config.server import LoRAModule
from octavo.server.context import ServerContext
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo.server.protocol.fields import FieldTable, Noted, Refused
from octavo.wording import shown
from octavo_registry.routes import Endpoint

log = logging.getLogger(__name__)


class LoadAdapter(msgspec.Struct, kw_only=True):
    """An adapter that requests may name from now on."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    base_model_name: str | None = None


class UnloadAdapter(msgspec.Struct, kw_only=True):
    """An adapter that requests may name no more."""

    lora_name: str


class AdapterChange(msgspec.Struct, kw_only=True):
    """What has been done."""

    lora_name: str
    loaded: bool


LOAD_FIELDS: Final = FieldTable(
    refused={
        "is_3d_lora_weight": Refused(
            "how matrices of experts lie is read from the adapter's files; leave it out", (False,)
        ),
    }
)
UNLOAD_FIELDS: Final = FieldTable(noted={"lora_int_id": Noted(int)})


class AdapterRoutes:
    """Adapters come and go while the server runs."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return both, or none: without them they are paths that do not exist."""
        if not self._server.adapters.allows_runtime:
            return []
        server, reply = self._server, AdapterChange
        load = operation("Load a LoRA adapter", request=LoadAdapter, reply=reply)
        unload = operation("Unload a LoRA adapter", request=UnloadAdapter, reply=reply)
        made = partial(server.endpoint, "POST", operators_only=True)
        return [
            made("/v1/load_lora_adapter", self._load, load),
            made("/v1/unload_lora_adapter", self._unload, unload),
        ]

    async def _load(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, LoadAdapter, LOAD_FIELDS)
        module = LoRAModule(
            name=request.lora_name,
            path=request.lora_path,
            base_model_name=request.base_model_name,
        )
        await self._server.adapters.load(module, in_place=request.load_inplace)
        log.info("adapter %s is loaded from %s", shown(module.name), shown(module.path))
        return Reply(encode(AdapterChange(lora_name=request.lora_name, loaded=True)))

    async def _unload(self, exchange: Exchange) -> Reply:
        request = self._server.read(exchange, UnloadAdapter, UNLOAD_FIELDS)
        await self._server.adapters.unload(request.lora_name)
        log.info("adapter %s is unloaded", shown(request.lora_name))
        return Reply(encode(AdapterChange(lora_name=request.lora_name, loaded=False)))
