"""The bodies of /v1/chat/completions, both ways."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from octavo.inputs import Conversation
from octavo.inputs.processor_kwargs import asked_by_request
from octavo.outputs import GuideReceipt
from octavo.server.apis.chat.functions import as_tool_choice, as_tools, with_tool_calls
from octavo.server.http.errors import HttpError
from octavo.server.protocol.conversation import plain_messages, plain_tool_choice, plain_tools
from octavo.server.protocol.fields import FieldTable, Noted, Refused
from octavo.server.protocol.logprobs import ChatLogprobs
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.sampling import NOT_AVAILABLE, NOTED, SeveralFields
from octavo.server.protocol.tool_calls import CalledFunction, MessageToolCall, ToolCallPiece
from octavo.server.protocol.usage import StreamOptions, Usage

CHAT_FIELDS: Final = FieldTable(
    noted={
        **NOTED,
        "prediction": Noted(dict[str, Any]),
        "web_search_options": Noted(
            dict[str, Any], why="has no effect: this server reads nothing from the web"
        ),
    },
    refused={
        **NOT_AVAILABLE,
        "audio": Refused("this model answers in text"),
        "modalities": Refused("this model answers in text", (["text"],)),
        "add_special_tokens": Refused("the chat template writes them", (False,)),
        "moderation": Refused("no moderation is part of this server"),
        "return_prompt_text": Refused("return_token_ids has what the model reads", (False,)),
        "echo": Refused("/v1/completions has it", (False,)),
    },
)
"""Fields of a chat request besides those of ``ChatRequest``."""


class ChatRequest(SeveralFields, kw_only=True):
    """A conversation to answer."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    """The older form of tools; answers then have function_call."""
    function_call: str | dict[str, Any] | None = None
    include_reasoning: bool = True
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
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool | None = None

    def conversation(
        self, notes: Notes, template_kwargs: dict[str, Any], modalities: Collection[str]
    ) -> Conversation:
        """What the model reads; what has no effect is noted. Functions are tools."""
        tools, choice, parallel = self.tools, self.tool_choice, self.parallel_tool_calls
        if self.functions is not None or self.function_call is not None:
            if tools is not None or choice is not None:
                raise HttpError(400, "functions are tools; give one of both", param="functions")
            tools, choice = as_tools(self.functions), as_tool_choice(self.function_call)
            parallel = False
        return Conversation(
            messages=plain_messages(with_tool_calls(self.messages), notes, modalities),
            tools=plain_tools(tools, notes),
            tool_choice=plain_tool_choice(choice, notes),
            parallel_tool_calls=parallel,
            documents=self.documents,
            chat_template=self.chat_template,
            chat_template_kwargs=template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            mm_processor_kwargs=asked_by_request(self.mm_processor_kwargs, self.media_io_kwargs),
            strict=True,
        )


class BatchChatRequest(ChatRequest, kw_only=True):
    """Several conversations to answer, each in a choice of its own."""

    messages: list[list[dict[str, Any]]]  # type: ignore[assignment]  # all other fields are equal

    def requests(self) -> list[ChatRequest]:
        """One for each conversation."""
        given = {name: getattr(self, name) for name in ChatRequest.__struct_fields__}
        return [ChatRequest(**{**given, "messages": messages}) for messages in self.messages]


class ChatMessage(msgspec.Struct):
    """The model's answer."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[MessageToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    """In a batch, whose choices have a prompt each."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The answer in one piece."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    guided: GuideReceipt | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct):
    """What is new in an answer."""

    content: str | msgspec.UnsetType | None = msgspec.UNSET
    role: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCallPiece] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


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
    guided: GuideReceipt | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
