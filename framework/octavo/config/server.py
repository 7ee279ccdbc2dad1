"""How the HTTP server listens, whom it lets in, and where it stops."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from octavo.config.checks import check_choice, check_range
from octavo.environment import ALLOW_RUNTIME_LORA
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where and how the server listens."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 is every address of this machine."""
    port: int = 8000
    """0 takes any free port."""
    uds: str | None = None
    """A Unix domain socket's path instead of host and port."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None
    """Clients must show a certificate that one of these has signed."""
    ssl_cert_reqs: int | None = None
    """Whether clients must: 0 no, 1 if they have one, 2 yes; None: yes, with ssl_ca_certs."""
    ssl_ciphers: str | None = None
    """OpenSSL's list of ciphers, for TLS 1.2; None: OpenSSL's choice."""
    enable_ssl_refresh: bool = False
    """Read certificates again when their files change."""
    root_path: str = ""
    """Path below which a proxy serves this server, such as /llm."""
    api_workers: int = 1
    """HTTP processes on the one engine."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)
        check_range("api_workers", self.api_workers, 1, 64)
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile go together; give both or none")
        for name in ("ssl_ca_certs", "ssl_ciphers", "enable_ssl_refresh"):
            if getattr(self, name) and self.ssl_certfile is None:
                raise ConfigError(f"{name} needs ssl_certfile and ssl_keyfile")
        if self.ssl_cert_reqs is not None:
            check_range("ssl_cert_reqs", self.ssl_cert_reqs, 0, 2)
            if self.ssl_cert_reqs and self.ssl_ca_certs is None:
                raise ConfigError("ssl_cert_reqs needs ssl_ca_certs: who may sign clients'")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path={self.root_path!r} must begin with / and not end with it")

    @property
    def client_certificates(self) -> int:
        """What is asked of clients, as Python's ssl counts: 0 nothing, 2 a certificate."""
        if self.ssl_cert_reqs is not None:
            return self.ssl_cert_reqs
        return 0 if self.ssl_ca_certs is None else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Who may ask, and from where."""

    api_key: tuple[str, ...] = ()
    """A key that clients must send; several may be given."""
    api_key_file: str | None = None
    """A file with one key a line."""
    admin_key: tuple[str, ...] = ()
    """A key of the operator's: it opens all that a key of api_key opens, and loads adapters, which
    no other key does."""
    admin_key_file: str | None = None
    """A file with one such key a line."""
    open_metrics: bool = False
    """/metrics answers without a key, too."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may ask (CORS); "*" is any; none: no CORS headers."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, without ports, that requests may ask for in their Host header, besides localhost and
    loopback addresses; "*" is any. None: any, but on a loopback address without a key."""
    allowed_methods: tuple[str, ...] = ("GET", "POST", "DELETE", "OPTIONS")
    allowed_headers: tuple[str, ...] = ("*",)
    """Headers that requests from those pages may have; "*" is any."""
    allow_credentials: bool = False
    trust_request_chat_template: bool = False
    """Requests may bring chat templates of their own."""
    enable_tokenizer_info_endpoint: bool = False
    """/tokenizer_info shows the chat template and the special tokens."""

    def __post_init__(self) -> None:
        for name in ("api_key", "admin_key"):
            for key in getattr(self, name):
                check_key(key, name)
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("allow_credentials needs named allowed_origins, not '*'")


def check_key(key: str, where: str) -> None:
    """Raise unless a header can hold the key; the message does not show it."""
    if not key.strip() or not key.isascii() or not key.isprintable():
        raise ConfigError(f"{where} must be printable ASCII and not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitConfig:
    """What one request may bring, and how long things may take."""

    max_body_mib: float = 64.0
    max_json_depth: int = 64
    max_json_parts: int = 2_000_000
    """Strings, lists, objects and commas of a body. Parsing so many stops all streams for 0.2 s."""
    max_header_kib: float = 64.0
    max_header_count: int = 100
    max_prompts: int = 1024
    """Prompts of one completion request, and sequences: prompts times n."""
    max_total_body_mib: float = 1024.0
    """Most that all bodies take which are arriving or being read; workers share it."""
    max_connections: int = 8192
    """Open at a time; workers share them."""
    body_timeout_seconds: float = 60.0
    """For a request's headers to arrive, and again for its body."""
    send_timeout_seconds: float = 120.0
    """A client that leaves 64 KiB unread for so long is let go."""
    drain_timeout_seconds: float = 300.0
    """After SIGTERM, for what is in flight to complete; 0 cuts it off at once."""
    hang_seconds: float = 120.0
    """Work under way and no step of the engine for so long is a hang: /health answers 503, and
    after twice as long the engine is killed. Raise it where one step takes that long."""

    def __post_init__(self) -> None:
        check_range("max_json_depth", self.max_json_depth, 1, 512)
        check_range("max_json_parts", self.max_json_parts, 1)
        check_range("max_header_count", self.max_header_count, 8, 10_000)
        check_range("max_prompts", self.max_prompts, 1)
        check_range("max_connections", self.max_connections, 1)
        for name in (
            "max_body_mib",
            "max_total_body_mib",
            "max_header_kib",
            "body_timeout_seconds",
            "send_timeout_seconds",
            "hang_seconds",
        ):
            check_range(name, getattr(self, name), 1e-3)
        check_range("drain_timeout_seconds", self.drain_timeout_seconds, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How the server answers, and what it says about it."""

    served_model_name: tuple[str, ...] = ()
    """Names that requests may give as their model; the first is shown. None: MODEL itself."""
    unknown_fields: Literal["warn", "refuse"] = "warn"
    """A field that nobody knows has no effect and is told, or ("refuse") is a 400. One that is
    almost a known one is a 400 in any case."""
    response_role: str = "assistant"
    """The role in answers of /v1/chat/completions."""
    return_tokens_as_token_ids: bool = False
    """Tokens of logprobs are token_id:N, unless a request says otherwise."""
    enable_force_include_usage: bool = False
    """All streams tell their usage, in each event and at their ends."""
    disable_fastapi_docs: bool = False
    """No /docs and no /openapi.json."""
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] | None = (
        None
    )
    """What of HTTP goes into the log, requests among it (at info); None: as all else."""
    allow_unpaired_tool_calls: bool = False
    """Answer conversations in which a tool's result has no call, or a call no result, instead of a
    400 as OpenAI's."""
    on_engine_death: Literal["exit", "restart"] = "exit"
    """"restart" starts a new engine once, and exits when that one dies too."""
    log_requests: bool = False
    """Write each request's parameters and the beginning of its prompt to the log."""
    log_outputs: bool = False
    max_log_chars: int = 200
    """Most characters of a prompt or an output in the log."""
    access_log: bool = True
    access_log_skip: tuple[str, ...] = ("/health", "/ping", "/metrics")
    """Paths that the access log leaves out."""
    responses_store: str | None = None
    """A file for the answers of /v1/responses, which then outlive the server. None: in memory."""
    max_stored_responses: int = 10_000
    """What was not used for longest goes first. 0: none is kept."""
    max_stored_responses_mib: float = 128.0
    otlp_traces_endpoint: str | None = None
    """An OpenTelemetry collector that gets a span of each request; needs octavo[otel]."""

    def __post_init__(self) -> None:
        check_choice("unknown_fields", self.unknown_fields, ("warn", "refuse"))
        check_choice("on_engine_death", self.on_engine_death, ("exit", "restart"))
        if not self.response_role.strip():
            raise ConfigError("response_role must not be empty")
        check_range("max_log_chars", self.max_log_chars, 0)
        check_range("max_stored_responses", self.max_stored_responses, 0)
        check_range("max_stored_responses_mib", self.max_stored_responses_mib, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Which LoRA adapters requests may name as their model; needs enable_lora."""

    lora_modules: tuple[str, ...] = ()
    """NAME=PATH, or a JSON object with "name", "path" and "base_model_name", what the adapter was
    trained on where that is MODEL by another name. PATH is a folder, or a name of a hub's."""
    lora_dir: tuple[str, ...] = ()
    """Each folder in this one is an adapter of its own name, as soon as it is there."""
    allow_runtime_lora: bool = False
    """Whether requests may load and unload adapters."""
    allowed_lora_path: tuple[str, ...] = ()
    """A folder below which requests may load adapters."""

    def __post_init__(self) -> None:
        names = [module.name for module in self.modules]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"lora_modules has two adapters named {name!r}")

    @property
    def takes_changes(self) -> bool:
        """``allow_runtime_lora``, or what the environment says."""
        return self.allow_runtime_lora or ALLOW_RUNTIME_LORA.is_on()

    @property
    def modules(self) -> list[LoRAModule]:
        """``lora_modules``, read."""
        return [read_module(text) for text in self.lora_modules]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAModule:
    """One adapter that a server starts with."""

    name: str
    path: str
    base_model_name: str | None = None


def read_module(text: str) -> LoRAModule:
    """Read NAME=PATH or a JSON object."""
    name, equals, path = text.partition("=")
    entries: Any = {"name": name, "path": path} if equals else {}
    if text.lstrip().startswith("{"):
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"lora_modules={text!r} is no JSON: {error}") from error
    known = [field.name for field in fields(LoRAModule)]
    if not {"name", "path"} <= entries.keys() <= set(known) or not all(
        isinstance(value, str) and value for value in entries.values()
    ):
        raise ConfigError(
            f"lora_modules={text!r} must be NAME=PATH, or a JSON object with texts for name, path "
            "and base_model_name"
        )
    return LoRAModule(**entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything that ``octavo serve`` knows besides the engine's options."""

    listen: ListenConfig = ListenConfig()
    access: AccessConfig = AccessConfig()
    limits: LimitConfig = LimitConfig()
    serve: ServeConfig = ServeConfig()
    adapters: AdapterConfig = AdapterConfig()

    def __post_init__(self) -> None:
        if self.adapters.takes_changes and self.listen.api_workers > 1:
            raise ConfigError(
                "allow_runtime_lora: with api_workers only one of the processes would hear of it; "
                "use one, or lora_dir"
            )
