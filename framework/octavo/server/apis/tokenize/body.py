"""The bodies of /tokenize and /detokenize, both ways: vLLM's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from octavo.inputs import Conversation
from octavo.server.protocol.conversation import plain_messages, plain_tools
from octavo.server.protocol.fields import FieldTable, Refused
from octavo.server.protocol.notes import Notes

TOKENIZE_FIELDS: Final = FieldTable(
    refused={
        "mm_processor_kwargs": Refused("/v1/chat/completions has it"),
        "media_io_kwargs": Refused("this route takes text"),
        "return_token_offsets": Refused("return_token_strs has the texts", (False,)),
    },
)
"""Fields besides those of ``TokenizeRequest``."""
DETOKENIZE_FIELDS: Final = FieldTable()


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A text or a conversation to put into token ids."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """None: of a text, and not of a conversation, whose template writes them as a rule."""
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    documents: list[dict[str, Any]] | None = None

    def conversation(
        self, notes: Notes, template_kwargs: dict[str, Any], modalities: Collection[str]
    ) -> Conversation:
        """What the model would read; what has no effect is noted."""
        return Conversation(
            tools=plain_tools(self.tools, notes),
            messages=plain_messages(self.messages or [], notes, modalities),
            documents=self.documents,
            chat_template=self.chat_template,
            chat_template_kwargs=template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            strict=True,
        )


class Tokens(msgspec.Struct, kw_only=True):
    """A prompt as the model reads it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None = None
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to put into text."""

    tokens: list[int]
    model: str = ""


class Text(msgspec.Struct, kw_only=True):
    """What the ids stand for, special tokens included."""

    prompt: str
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class SpecialToken(msgspec.Struct, kw_only=True):
    """A token that is no text."""

    content: str | None
    special: bool = True


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """The tokenizer, under the names of tokenizer_config.json; besides, each special token that
    has a name stands under it: bos_token, eos_token, pad_token, ...
    """

    tokenizer_class: str
    vocab_size: int
    chat_template: str | None
    """What requests without one of their own get; None: the model has none."""
    added_tokens_decoder: dict[int, SpecialToken]
    """The special tokens by their ids."""
