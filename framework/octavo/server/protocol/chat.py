"""The bodies of /v1/chat/completions, both ways."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from octavo.outputs import TokenLogprobs
from octavo.server.protocol.fields import FieldTable, Refused
from octavo.server.protocol.sampling import NO_EFFECT, NOT_AVAILABLE, SeveralFields
from octavo.server.protocol.usage import StreamOptions, Usage, json_number

_TOOLS = "tool calls are not part of this version"
CHAT_FIELDS: Final = FieldTable(
    no_effect={**NO_EFFECT, "prediction": dict[str, Any], "parallel_tool_calls": bool},
    refused={
        **NOT_AVAILABLE,
        "tools": Refused(_TOOLS, ([],)),
        "tool_choice": Refused(_TOOLS, ("none", "auto")),
        "functions": Refused(_TOOLS, ([],)),
        "function_call": Refused(_TOOLS, ("none", "auto")),
        "audio": Refused("this model answers in text"),
        "modalities": Refused("this model answers in text", (["text"],)),
        "verbosity": Refused("say in the messages how long the answer should be", ("medium",)),
        "add_special_tokens": Refused("the chat template writes them", (False,)),
        "moderation": Refused("no moderation is part of this server"),
        "web_search_options": Refused("this server reads nothing from the web"),
        "mm_processor_kwargs": Refused("this model takes text"),
        "media_io_kwargs": Refused("this model takes text"),
        "include_reasoning": Refused("no reasoning parser is set", (True,)),
        "echo": Refused("/v1/completions has it", (False,)),
    },
)
"""Fields of a chat request besides those of ``ChatRequest``."""


class ChatRequest(SeveralFields, kw_only=True):
    """A conversation to answer."""

    messages: list[dict[str, Any]]
    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False


class TopLogprob(msgspec.Struct):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """The token that came, and those that might have."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Of a message, token by token."""

    content: list[ChatLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    """The model's answer."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer in one piece."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct):
    """What is new in an answer."""

    content: str | msgspec.UnsetType = msgspec.UNSET
    role: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """One answer's news."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def chat_logprobs(tokens: list[TokenLogprobs], num_top: int, *, as_ids: bool) -> ChatLogprobs:
    """OpenAI's form of logprobs; of each token the chosen one comes first."""
    content = []
    for candidates in tokens:
        named = [
            TopLogprob(
                token=f"token_id:{token}" if as_ids else (entry.decoded_token or ""),
                logprob=json_number(entry),
                bytes=list((entry.decoded_token or "").encode()),
            )
            for token, entry in candidates.items()
        ]
        ranks = [entry.rank or 0 for entry in candidates.values()]
        top = [one for rank, one in sorted(zip(ranks, named, strict=True), key=lambda e: e[0])]
        chosen = named[0]
        content.append(ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, top[:num_top]))
    return ChatLogprobs(content)
