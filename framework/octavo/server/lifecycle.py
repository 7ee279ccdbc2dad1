"""A server from its first socket to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from octavo.async_llm import AsyncLLM
from octavo.config.server import AccessConfig, ListenConfig, ServerConfig
from octavo.errors import ConfigError
from octavo.server.app import add_built_in_routes, make_app
from octavo.server.context import ServerContext
from octavo.server.http_protocol import limited_protocol

log = logging.getLogger(__name__)

LIVENESS_SECONDS = 0.1
"""How long an engine's death or an emptied server can stay unseen."""
API_KEY_VARIABLE = "OCTAVO_API_KEY"


def bind(listen: ListenConfig) -> socket.socket:
    """Take the address before the model is loaded: a port in use is known at once."""
    if listen.uds is not None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address: Any = listen.uds
        with suppress(OSError):
            if Path(listen.uds).is_socket():
                Path(listen.uds).unlink()
    else:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = (listen.host, listen.port)
    try:
        made.bind(address)
        made.listen(2048)
    except (OSError, OverflowError) as error:
        made.close()
        raise ConfigError(f"cannot listen at {address}: {error}; choose another --port") from error
    return made


def api_keys(access: AccessConfig) -> tuple[str, ...]:
    """All keys: given, in a file, and in the environment."""
    keys = list(access.api_key)
    if access.api_key_file is not None:
        try:
            lines = Path(access.api_key_file).read_text().split()
        except (OSError, ValueError) as error:
            raise ConfigError(f"api_key_file={access.api_key_file!r}: {error}") from error
        if not lines:
            raise ConfigError(f"api_key_file={access.api_key_file!r} holds no key")
        keys += lines
    if os.environ.get(API_KEY_VARIABLE):
        keys.append(os.environ[API_KEY_VARIABLE])
    return tuple(dict.fromkeys(keys))


async def serve(engine: AsyncLLM, config: ServerConfig, model_names: tuple[str, ...],
                listener: socket.socket) -> int:  # fmt: skip
    """Answer until a signal or the engine's death; returns the exit code."""
    host = engine.host
    add_built_in_routes(host.routes)
    context = ServerContext(engine=engine, host=host, config=config, model_names=model_names)
    app = make_app(context, api_keys(config.access))
    server = _Server(
        uvicorn.Config(
            app,
            http=limited_protocol(config.limits),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="off",
            timeout_keep_alive=75,
            ssl_certfile=config.listen.ssl_certfile,
            ssl_keyfile=config.listen.ssl_keyfile,
            ssl_keyfile_password=config.listen.ssl_keyfile_password,
            ssl_ca_certs=config.listen.ssl_ca_certs,
        )
    )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    _announce(config.listen, listener, model_names)
    code = await _until_the_end(context, server, ended)
    await serving
    return code


class _Server(uvicorn.Server):
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leave signals to ``serve``, which drains first."""
        from contextlib import nullcontext

        return nullcontext()


async def _until_the_end(
    context: ServerContext, server: uvicorn.Server, ended: asyncio.Event
) -> int:
    code = 0
    while not ended.is_set() and context.engine.alive:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), LIVENESS_SECONDS)
    if ended.is_set():
        context.gate.closed_because = "the server is shutting down"
        log.info("shutting down: %d requests complete", context.gate.num_inside)
        deadline = asyncio.get_running_loop().time() + context.config.limits.drain_timeout_seconds
        ended.clear()
        while context.gate.num_inside and asyncio.get_running_loop().time() < deadline:
            if ended.is_set():
                log.warning("a second signal: %d requests are cut off", context.gate.num_inside)
                break
            await asyncio.sleep(LIVENESS_SECONDS)
    else:
        context.gate.closed_because = "the engine has ended"
        await asyncio.sleep(LIVENESS_SECONDS)  # streams tell their clients
        code = 1
    server.should_exit = True
    server.force_exit = context.gate.num_inside > 0
    return code


def _announce(listen: ListenConfig, listener: socket.socket, model_names: tuple[str, ...]) -> None:
    scheme = "https" if listen.ssl_certfile else "http"
    if listen.uds is not None:
        where = f"unix:{listen.uds}"
    else:
        host, port = listener.getsockname()[:2]
        where = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{listen.root_path}"
    sys.stderr.write(f"{model_names[0]} is served at {where} (Ctrl-C ends it)\n")
    sys.stderr.flush()
