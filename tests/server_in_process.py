"""A server of this process around an engine that tests share, as OpenAI's package sees it."""

from __future__ import annotations

from typing import Any

import httpx
import openai

from octavo.config.server import LimitConfig, ServeConfig, ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.server.app import make_app
from octavo.server.context import ServerContext
from octavo.server.http.keys import Keys

MODEL = "octavo/tiny"


def clients(
    engine: AsyncLLM, *keys: str, limits: LimitConfig | None = None, **serve: Any
) -> list[openai.AsyncOpenAI]:
    """A client of each key; without keys, one."""
    server = ServerContext(
        engine=engine,
        host=engine.host,
        config=ServerConfig(serve=ServeConfig(**serve), limits=limits or LimitConfig()),
        model_names=(MODEL,),
    )
    app = make_app(server, Keys(keys))
    return [
        openai.AsyncOpenAI(
            base_url="http://octavo/v1",
            api_key=key,
            max_retries=0,
            http_client=httpx.AsyncClient(transport=httpx.ASGITransport(app)),
        )
        for key in keys or ("none",)
    ]
