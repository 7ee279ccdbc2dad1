"""The server's HTTP protocol around an app, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from octavo.config.server import LimitConfig
from octavo.server.http.protocol import limited_protocol


def maker_of_protocols(
    limits: LimitConfig, app: Any = None, **options: Any
) -> Callable[[], HttpToolsProtocol]:
    """What makes a server's protocols; they answer by the app."""
    config = uvicorn.Config(app or MagicMock(), ws="none", lifespan="off", **options)
    config.load()
    made = limited_protocol(limits, lambda refusal: None)
    return lambda: made(config, ServerState(), {}, asyncio.get_running_loop())


def transport_of(protocol: HttpToolsProtocol) -> MagicMock:
    """Connect the protocol, which closes when the mock is closed."""
    transport = MagicMock()
    transport.is_closing.side_effect = lambda: transport.close.called
    protocol.connection_made(transport)
    return transport
