"""The bodies of /v1/messages, both ways: Anthropic's."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from octavo.errors import MessageError, ParameterError
from octavo.params import shown
from octavo.server.protocol.conversation import check_keys, check_size, without_nulls
from octavo.server.protocol.fields import FORM_ADVICE, FieldTable, Refused
from octavo.server.protocol.message_blocks import Block, chat_messages

MIN_BUDGET_TOKENS: Final = 1024
"""Of thought, as Anthropic has it."""


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """Who asks."""

    user_id: str | None = None


class CacheControl(msgspec.Struct, forbid_unknown_fields=True):
    """What to keep."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


_NO_EFFECT: Final = {
    "metadata": Metadata,
    "service_tier": Literal["auto", "standard_only"],
    "cache_control": CacheControl,
    "user_profile_id": str,
    "workspace_id": str,
}
"""They cannot change the tokens: all prefixes are cached."""
_REFUSED: Final = {
    "output_format": Refused(FORM_ADVICE),
    "container": Refused("this server runs no code"),
    "mcp_servers": Refused("describe their tools in tools, and run them yourself", ([],)),
    "context_management": Refused("shorten the messages where they are made"),
    "diagnostics": Refused("usage tells how many tokens came from the cache"),
    "inference_geo": Refused("this server runs where it runs"),
    "speed": Refused("there is one speed", ("standard",)),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
}
COUNT_FIELDS: Final = FieldTable(no_effect=_NO_EFFECT, refused=_REFUSED)
"""Fields besides those of ``CountRequest``."""
MESSAGE_FIELDS: Final = FieldTable(no_effect=_NO_EFFECT, refused=_REFUSED)
"""Fields besides those of ``MessageRequest``."""


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """How much to reason."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None
    """Refused."""

    def __post_init__(self) -> None:
        if self.format is not None:
            raise ValueError(f"format is not available: {FORM_ADVICE}")


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to think before the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    """What thought may cost; ``max_tokens``, which must be more, is all that bounds it here."""

    @property
    def is_on(self) -> bool:
        """Whether thought is asked for."""
        return self.type != "disabled"


class CountRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: list[dict[str, Any]]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = msgspec.field(default_factory=OutputConfig)
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class MessageRequest(CountRequest, kw_only=True):
    """A conversation to answer."""

    max_tokens: int
    stream: bool = False
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    temperature: float | msgspec.UnsetType = msgspec.UNSET
    top_p: float | msgspec.UnsetType = msgspec.UNSET
    top_k: int | msgspec.UnsetType = msgspec.UNSET


class MessageUsage(msgspec.Struct, kw_only=True):
    """What an answer has cost; what came from the cache is not among ``input_tokens``."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, tag="message", kw_only=True):
    """The answer."""

    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class TokenCount(msgspec.Struct):
    """Of a conversation as the model would read it."""

    input_tokens: int


def check_thinking(request: MessageRequest) -> None:
    """Raise for a budget that Anthropic would not take either."""
    thinking = request.thinking
    if thinking is None:
        return
    if (thinking.budget_tokens is not None) != (thinking.type == "enabled"):
        raise ParameterError(
            "thinking: budget_tokens goes with the type 'enabled', which needs it", param="thinking"
        )
    budget = thinking.budget_tokens
    if budget is not None and not MIN_BUDGET_TOKENS <= budget < request.max_tokens:
        raise ParameterError(
            f"thinking.budget_tokens={shown(budget)} must be at least {MIN_BUDGET_TOKENS} and "
            f"less than max_tokens={request.max_tokens}",
            param="thinking",
        )


def conversation(request: CountRequest) -> list[dict[str, Any]]:
    """The messages, the system's first, as OpenAI's; raises for what cannot be one."""
    if not request.messages:
        raise MessageError("messages is an empty list")
    check_size("messages", request.messages)
    made = []
    if request.system:
        made += chat_messages("system", "system", request.system)
    for index, given in enumerate(request.messages):
        where = f"messages[{index}]"
        message = without_nulls(given)
        check_keys(where, message, {"role", "content"})
        role = message.get("role")
        if not isinstance(role, str) or role not in ("user", "assistant", "system"):
            raise MessageError(f"{where}.role is {shown(role)}; known: user, assistant")
        made += chat_messages(f"{where}.content", role, message.get("content"))
    return made
