"""What the framework's own route groups find around them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Final, Literal

from octavo.config.server import ServerConfig
from octavo.errors import UnknownAdapterError
from octavo.frontend.async_llm import AsyncLLM
from octavo.params import LoRARequest, SamplingParams
from octavo.server.adapters import ServedAdapters
from octavo.server.apis.responses.runs import BackgroundRuns
from octavo.server.apis.responses.store import ResponseStore, open_store
from octavo.server.http.body import read_json
from octavo.server.http.boundary import Gate
from octavo.server.http.errors import HttpError
from octavo.server.http.exchange import Exchange, Handler, JsonEndpoint, Read
from octavo.server.metrics import ServerMeter
from octavo.server.protocol.fields import Body, FieldTable, read_body
from octavo.server.protocol.notes import NoteLog, Notes
from octavo.server.protocol.sampling import MAX_LOGPROBS
from octavo.server.protocol.usage import StreamOptions, UsageCount
from octavo.wording import shown
from octavo_registry import PluginHost
from octavo_registry.routes import Endpoint

THINKING_VARIABLES: Final = ("enable_thinking", "thinking")
"""What chat templates call the switch: Qwen's and GLM's, DeepSeek's and Granite's."""
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's, and the last one vLLM's: what a template makes of them is the model's."""


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """One server: its engine, plugins, config and state."""

    engine: AsyncLLM
    host: PluginHost
    config: ServerConfig
    model_names: tuple[str, ...]
    is_local: bool = False
    """Only what runs on this machine can connect, by the address that is listened at."""
    gate: Gate = field(default_factory=Gate)
    started: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for servers that answer alike: release and model."""
        return (
            "octavo_" + sha256(f"{version('octavo')} {self.model_names}".encode()).hexdigest()[:12]
        )

    @cached_property
    def adapters(self) -> ServedAdapters:
        """The adapters that requests may name."""
        return ServedAdapters(self.engine, self.config.adapters, self.model_names)

    @cached_property
    def responses(self) -> ResponseStore | None:
        """The answers that are kept; None where none may be."""
        return open_store(self.config.serve)

    @cached_property
    def runs(self) -> BackgroundRuns | None:
        """The answers that are made in the background; None where none is kept."""
        return None if self.responses is None else BackgroundRuns(self.responses, self.gate)

    @cached_property
    def meter(self) -> ServerMeter:
        """What this process counts, for /metrics."""
        return ServerMeter(
            self.engine, self.host.faults, self.model_names[0], self.note_log.counter
        )

    @cached_property
    def note_log(self) -> NoteLog:
        """Where the notes of all requests go."""
        return NoteLog(refuses=self.config.serve.unknown_fields == "refuse")

    @cached_property
    def modalities(self) -> frozenset[str]:
        """The kinds of media that requests may bring."""
        of_model = self.engine.model_folder.capabilities.modalities
        return frozenset(each for each in of_model if self.engine.config.media.max_items(each))

    @property
    def max_logprobs(self) -> int:
        """How many of a token requests may ask for."""
        most = self.engine.config.model.max_logprobs
        return MAX_LOGPROBS if most is None else most

    def as_token_ids(self, wish: bool | None) -> bool:
        """Whether tokens of logprobs are named by their ids; ``wish`` is the request's."""
        return self.config.serve.return_tokens_as_token_ids if wish is None else wish

    def count_usage(self, options: StreamOptions | None = None) -> UsageCount:
        """Return what counts one answer's usage, and knows when it is told."""
        return UsageCount(options, is_forced=self.config.serve.enable_force_include_usage)

    def read(
        self, exchange: Exchange, kind: type[Body], table: FieldTable, *, is_form: bool = False
    ) -> Body:
        """Read a body; what of it has no effect is in the exchange's notes."""
        return read_body(exchange.body, kind, table, exchange.notes, is_form=is_form)

    def head(self, id: str, model: str) -> dict[str, Any]:
        """What an answer of OpenAI's older routes begins with, and each event of its stream."""
        return {
            "id": id,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": self.fingerprint,
        }

    async def load(self) -> dict[str, float]:
        """How busy the engine is, under vLLM's names."""
        counts = await self.engine.stats()
        used = counts["num_live_blocks"] / max(1, self.engine.ready.num_blocks)
        return {"kv_cache_usage_perc": used, "num_requests_waiting": float(counts["num_waiting"])}

    def endpoint(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        handler: Handler,
        operation: Mapping[str, Any],
        *,
        authenticated: bool = True,
        operators_only: bool = False,
        generates: bool = False,
        read: Read | None = read_json,
    ) -> Endpoint:
        """Make a handler an endpoint under the limits; without ``read``, or POST, it takes no body.

        One that ``generates`` reads no body while the engine's queue is full.
        """
        app = JsonEndpoint(
            handler,
            self.config.limits,
            read=read if method == "POST" else None,
            check_room=self.engine.check_room if generates else None,
            note_log=self.note_log,
            load=self.load if generates else None,
        )
        return Endpoint(
            method=method,
            path=path,
            app=app,
            authenticated=authenticated,
            operators_only=operators_only,
            operation=operation,
        )

    async def check_model(self, name: str) -> tuple[str, LoRARequest | None]:
        """Return the name to show, and the adapter that it is, if it is one.

        A body that names no model gets the one there is.
        """
        if not name or name in self.model_names:
            return name or self.model_names[0], None
        with suppress(UnknownAdapterError):
            if self.adapters.is_on:
                return name, await self.adapters.find(name)
        raise HttpError(
            404,
            f"the model {shown(name)} does not exist; this server has "
            f"{', '.join(self.model_names)}"
            + (", and the adapters that /v1/models lists" if self.adapters.is_on else ""),
            param="model",
            code="model_not_found",
        )

    def check_sequences(self, num_prompts: int, params: SamplingParams) -> None:
        """Raise when one body asks for too much at once."""
        most = self.config.limits.max_prompts
        if num_prompts * params.n > most:
            raise HttpError(
                400,
                f"{num_prompts} prompts times n={params.n} is more than {most}",
                param="n" if params.n > 1 else "prompt",
            )

    async def checked_template(self, given: str | None) -> str | None:
        """Return a request's own chat template, where the operator trusts such; it is read then."""
        if given is not None and not self.config.access.trust_request_chat_template:
            raise HttpError(
                400,
                "chat_template: this server takes no templates from requests; its operator "
                "may allow them with --trust-request-chat-template",
                param="chat_template",
            )
        if given is not None:
            await self.engine.read_template(given)
        return given

    def template_kwargs(
        self, given: Mapping[str, Any], notes: Notes, template: str | None = None
    ) -> dict[str, Any]:
        """Return what the chat template reads of them; the others have no effect."""
        if not given:
            return {}
        known = self.engine.chat_template(template).variables
        for name in given:
            if name not in known:
                notes.unknown(name, known, "chat_template_kwargs")
        return {name: value for name, value in given.items() if name in known}

    def effort_kwargs(
        self, name: str, effort: str | None, notes: Notes, template: str | None = None
    ) -> dict[str, str]:
        """Return what tells the chat template how much to reason; ``name`` is the field's."""
        if effort is None:
            return {}
        if effort not in EFFORTS:
            notes.add(name, f"{shown(effort)} is none of {', '.join(EFFORTS)} and has no effect")
        elif "reasoning_effort" in self.engine.chat_template(template).variables:
            return {"reasoning_effort": effort}
        elif effort != "none":
            notes.add(name, "is not read by the chat template and has no effect")
        return {}

    def thinking_kwargs(self, is_on: bool, notes: Notes) -> dict[str, bool]:
        """Return what tells the chat template whether to reason, where it can be told."""
        if is_on and self.engine.answer_format.reasoning_parser is None:
            notes.add(
                "thinking",
                "has no effect: this model's thoughts are not told apart from its answers; its "
                "operator may choose a --reasoning-parser",
            )
            return {}
        known = self.engine.chat_template().variables
        return {name: is_on for name in THINKING_VARIABLES if name in known}

    def default_params(self, *, max_tokens: int | None) -> SamplingParams:
        """The model's recommendation; ``max_tokens`` stands where it has none of its own."""
        default = self.engine.get_default_sampling_params()
        if default.max_tokens == SamplingParams().max_tokens:
            return replace(default, max_tokens=max_tokens)
        return default
