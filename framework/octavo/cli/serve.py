"""``octavo serve MODEL``."""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from dataclasses import fields, replace
from typing import get_type_hints

from octavo.cli.engine_flags import add_engine_flags, engine_keywords
from octavo.cli.entry import tell
from octavo.cli.fields import add_fields, given_fields
from octavo.config.server import ServerConfig
from octavo.observability.logs import configure_logging
from octavo.observability.one_line import escape_records
from octavo_registry import PluginHost

log = logging.getLogger(__name__)

QUEUE_LIMITS = {"max_queued_requests": 2048, "max_queued_tokens": 4 * 2**20}
"""A server's own defaults: an engine without them takes all."""


class ServeCommand:
    """Answers HTTP requests with a model."""

    def configure(self, parser: ArgumentParser) -> None:
        """Declare the server's flags and the engine's."""
        for name, kind in get_type_hints(ServerConfig).items():
            add_fields(parser, kind, title=f"{name} options")
        add_engine_flags(parser)

    def run(self, args: Namespace, host: PluginHost) -> int:
        """Serve until a signal comes."""
        from octavo.observability.tracing import exporter_class  # what follows is slow to import
        from octavo.server.adapters import check_adapters
        from octavo.server.http.keys import read_keys
        from octavo.server.http.listening import allow_files, bind, unbind
        from octavo.server.processes.http_thread import Service
        from octavo.server.processes.lifecycle import leave
        from octavo.server.processes.serve import serve

        config = _server_config(args)
        keys = read_keys(config.access)  # a wrong file is known before the model is loaded
        if config.serve.otlp_traces_endpoint is not None:
            exporter_class()  # and so are missing packages
        configure_logging(default="INFO")
        escape_records()
        allow_files(config.limits)
        if config.adapters.takes_changes and keys.users and not keys.operators:
            log.warning("no request can load adapters: give --admin-key or OCTAVO_ADMIN_KEY")
        options = {**QUEUE_LIMITS, **engine_keywords(args, host)}
        names = config.serve.served_model_name or (args.model,)
        check_adapters(config.adapters, names, is_on=bool(options.get("enable_lora")))
        service = Service(config=config, model_names=names, keys=keys)
        listeners = bind(config.listen, config.listen.api_workers)
        try:
            code = serve(options, service, listeners)
        except Exception as error:
            if args.debug:
                raise
            code = tell(error)
        finally:
            unbind(config.listen, listeners)
        leave(code)


def _server_config(args: Namespace) -> ServerConfig:
    config = ServerConfig()
    given = {
        field.name: replace(getattr(config, field.name), **given_fields(args, kind))
        for field in fields(ServerConfig)
        for kind in (get_type_hints(ServerConfig)[field.name],)
    }
    return ServerConfig(**given)
