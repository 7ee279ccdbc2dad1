"""``octavo serve MODEL``."""

from __future__ import annotations

import asyncio
import logging
from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from typing import get_type_hints

from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.fields import add_fields, given_fields
from octavo.config.server import ServerConfig
from octavo_registry import PluginHost


class ServeCommand:
    """Answers HTTP requests with a model."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the server's flags and the engine's."""
        for name, kind in get_type_hints(ServerConfig).items():
            add_fields(parser, kind, title=f"{name} options")
        add_engine_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Serve until a signal comes."""
        from octavo.async_llm import AsyncLLM  # what follows is slow to import
        from octavo.server.lifecycle import api_keys, bind, serve

        config = _server_config(args)
        api_keys(config.access)  # a wrong file is known before the model is loaded
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        with bind(config.listen) as listener:
            engine = AsyncLLM(**engine_keywords(args, host))
            try:
                names = config.serve.served_model_name or (args.model,)
                return asyncio.run(serve(engine, config, names, listener))
            finally:
                engine.close()


def _server_config(args: Namespace) -> ServerConfig:
    config = ServerConfig()
    given = {
        field.name: replace(getattr(config, field.name), **given_fields(args, kind))
        for field in fields(ServerConfig)
        for kind in (get_type_hints(ServerConfig)[field.name],)
    }
    return ServerConfig(**given)
