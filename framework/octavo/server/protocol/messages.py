"""The bodies of /v1/messages, both ways: Anthropic's."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo.errors import MessageError
from octavo.params import shown
from octavo.server.protocol.conversation import check_keys, check_size, without_nulls
from octavo.server.protocol.fields import FORM_ADVICE, FieldTable, Refused
from octavo.server.protocol.message_blocks import Block, chat_messages

_NO_EFFECT: Final = {
    "metadata": dict[str, Any],
    "service_tier": str,
    "cache_control": dict[str, Any],
    "user_profile_id": str,
    "workspace_id": str,
}
"""They cannot change the tokens: all prefixes are cached."""
_REFUSED: Final = {
    "thinking": Refused("this model's answers are all text", ({"type": "disabled"},)),
    "output_config": Refused(FORM_ADVICE, ({},)),
    "output_format": Refused(FORM_ADVICE),
    "container": Refused("this server runs no code"),
    "mcp_servers": Refused("describe their tools in tools, and run them yourself", ([],)),
    "context_management": Refused("shorten the messages where they are made"),
    "diagnostics": Refused("usage tells how many tokens came from the cache"),
    "inference_geo": Refused("this server runs where it runs"),
    "speed": Refused("there is one speed", ("standard",)),
    "chat_template_kwargs": Refused("/v1/chat/completions has it", ({},)),
    "kv_transfer_params": Refused("prefill and decode run in one engine"),
}
COUNT_FIELDS: Final = FieldTable(no_effect=_NO_EFFECT, refused=_REFUSED)
"""Fields besides those of ``CountRequest``."""
MESSAGE_FIELDS: Final = FieldTable(no_effect=_NO_EFFECT, refused=_REFUSED)
"""Fields besides those of ``MessageRequest``."""


class CountRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: list[dict[str, Any]]
    model: str = ""
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


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
