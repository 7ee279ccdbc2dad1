"""/capabilities and /plugins."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from octavo.errors import PromptError
from octavo.server.context import ServerContext
from octavo.server.http.exchange import Exchange, Reply, encode
from octavo.server.http.openapi import operation
from octavo_registry.routes import Endpoint

_LATER = "not part of this version"


class Feature(msgspec.Struct, omit_defaults=True):
    """Whether it is on, and why not, or what of it."""

    on: bool
    why: str | None = None


class Capabilities(msgspec.Struct, kw_only=True):
    """What this server can do."""

    version: str
    models: list[str]
    architecture: str
    limits: dict[str, int | float | None]
    features: dict[str, Feature]


class PluginInfo(msgspec.Struct, kw_only=True):
    """A plugin that is loaded, and how it has done."""

    name: str
    version: str | None
    distribution: str | None
    module: str | None
    registers: dict[str, list[str]]
    failures: dict[str, int]
    """Numbers of failures, by call."""
    quarantined_seconds: float | None
    """Until it is tried again; None: it is not in quarantine."""


class Plugins(msgspec.Struct):
    """All of them."""

    plugins: list[PluginInfo]


class InfoRoutes:
    """Tells what the server can do, and with which plugins."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    def endpoints(self) -> Sequence[Endpoint]:
        """Return both."""
        able = operation("Tell what is on, what is off and why", reply=Capabilities)
        plugins = operation("List the plugins", reply=Plugins)
        return [
            self._server.endpoint("GET", "/capabilities", self._capabilities, able),
            self._server.endpoint("GET", "/plugins", self._plugins, plugins),
        ]

    async def _capabilities(self, exchange: Exchange) -> Reply:
        server = self._server
        engine, limits = server.engine, server.config.limits
        ready, scheduler = engine.ready, engine.config.scheduler
        made = Capabilities(
            version=version("octavo"),
            models=list(server.model_names),
            architecture=engine.model_folder.architecture,
            limits={
                "max_model_len": ready.max_model_len,
                "vocab_size": ready.vocab_size,
                "cache_tokens": ready.num_blocks * ready.block_tokens,
                "max_num_seqs": ready.max_num_seqs,
                "max_num_batched_tokens": ready.max_num_batched_tokens,
                "max_queued_requests": scheduler.max_queued_requests,
                "max_queued_tokens": scheduler.max_queued_tokens,
                "max_prompts": limits.max_prompts,
                "max_body_mib": limits.max_body_mib,
            },
            features=self._features(),
        )
        return Reply(encode(made))

    def _features(self) -> dict[str, Feature]:
        server, config = self._server, self._server.engine.config
        answers = server.engine.answer_format
        can = server.engine.model_folder.capabilities
        trusts = server.config.access.trust_request_chat_template
        takes_none = Feature(False, "this architecture takes no adapters")
        return {
            "completions": Feature(True),
            "chat": self._chat(),
            "streaming": Feature(True),
            "logprobs": Feature(True),
            "prefix_caching": _flag(config.cache.enable_prefix_caching, "--enable-prefix-caching"),
            "priority": _flag(
                config.scheduler.scheduling_policy == "priority", "--scheduling-policy priority"
            ),
            "batch_invariant": _flag(config.model.batch_invariant, "--batch-invariant"),
            "logits_processors": _flag(bool(config.logits_processors), "--logits-processors"),
            "request_chat_template": _flag(trusts, "--trust-request-chat-template"),
            "tokenizer_info": _flag(
                server.config.access.enable_tokenizer_info_endpoint,
                "--enable-tokenizer-info-endpoint",
            ),
            "unknown_fields": _flag(
                server.config.serve.unknown_fields == "warn", "--unknown-fields warn"
            ),
            "structured_output": _guided(server.host.guided_backends.names()),
            "tools": _flag(answers.tool_parser is not None, "--tool-call-parser NAME"),
            "reasoning": _flag(answers.reasoning_parser is not None, "--reasoning-parser NAME"),
            "lora": _flag(server.adapters.is_on, "--enable-lora") if can.lora else takes_none,
            "media": Feature(bool(can.modalities), ", ".join(can.modalities) or "only text"),
            "pooling": Feature(False, _LATER),
        }

    def _chat(self) -> Feature:
        try:
            variables = self._server.engine.chat_template().variables
        except PromptError as error:
            return Feature(False, str(error))
        return Feature(True, f"its template reads: {', '.join(sorted(variables))}")

    async def _plugins(self, exchange: Exchange) -> Reply:
        host = self._server.host
        failures: dict[str, dict[str, int]] = {}
        for (plugin, call), count in host.faults.counts.items():
            failures.setdefault(plugin, {})[call] = count
        quarantined = host.faults.quarantined
        made: list[Any] = [
            PluginInfo(
                name=record.name,
                version=record.version,
                distribution=record.distribution,
                module=record.module,
                registers={
                    kind: list(names) for kind, names in host.registrations(record.name).items()
                },
                failures=failures.get(record.name, {}),
                quarantined_seconds=quarantined.get(record.name),
            )
            for record in host.plugins
        ]
        return Reply(encode(Plugins(made)))


def _guided(backends: Sequence[str]) -> Feature:
    if not backends:
        return Feature(False, "no plugin gives a guided backend")
    return Feature(True, f"by {', '.join(backends)}")


def _flag(is_on: bool, flag: str) -> Feature:
    return Feature(True) if is_on else Feature(False, f"off; {flag} turns it on")
