"""The bodies of /v1/messages, both ways: Anthropic's."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from octavo.errors import MessageError
from octavo.params import shown
from octavo.server.protocol.conversation import check_size, read_keys
from octavo.server.protocol.fields import FORM_ADVICE, FieldTable, Noted, Refused
from octavo.server.protocol.message_blocks import Block, chat_messages
from octavo.server.protocol.notes import Notes

_NOTED: Final = {
    "metadata": Noted(dict[str, Any], ({},)),
    "service_tier": Noted(str, ("auto", "standard_only")),
    "user_profile_id": Noted(str),
    "workspace_id": Noted(str),
    "context_management": Noted(dict[str, Any], ({},)),
    "diagnostics": Noted(dict[str, Any], ({},)),
    "speed": Noted(str, ("standard",)),
    "mcp_servers": Noted(list[Any], ([],), "has no effect: their tools cannot run here"),
}
"""They cannot make an answer wrong."""
_REFUSED: Final = {
    "output_format": Refused(FORM_ADVICE),
    "container": Refused("this server runs no code"),
    "inference_geo": Refused("this server runs where it runs"),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
}
COUNT_FIELDS: Final = FieldTable(noted=_NOTED, refused=_REFUSED)
"""Fields besides those of ``CountRequest``."""
MESSAGE_FIELDS: Final = FieldTable(noted=_NOTED, refused=_REFUSED)
"""Fields besides those of ``MessageRequest``."""


class CacheControl(msgspec.Struct):
    """What to keep: all prefixes are."""

    type: str = "ephemeral"
    ttl: str | None = None


class OutputConfig(msgspec.Struct):
    """How much to reason."""

    effort: str | None = None
    format: dict[str, Any] | None = None
    """Refused."""

    def __post_init__(self) -> None:
        if self.format is not None:
            raise ValueError(f"format is not available: {FORM_ADVICE}")


class Thinking(msgspec.Struct):
    """Whether to think before the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    """What thought may cost; noted: ``max_tokens`` is all that bounds it here."""

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
    cache_control: CacheControl | None = None
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
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def conversation(request: CountRequest, notes: Notes) -> list[dict[str, Any]]:
    """The messages, the system's first, as OpenAI's; raises for what cannot be one."""
    if not request.messages:
        raise MessageError("messages is an empty list")
    check_size("messages", request.messages)
    made = []
    if request.system:
        made += chat_messages("system", "system", request.system, notes)
    for index, given in enumerate(request.messages):
        where = f"messages[{index}]"
        message = read_keys(where, given, {"role", "content"}, notes)
        role = message.get("role")
        if not isinstance(role, str) or role not in ("user", "assistant", "system"):
            raise MessageError(f"{where}.role is {shown(role)}; known: user, assistant")
        made += chat_messages(f"{where}.content", role, message.get("content"), notes)
    return made
