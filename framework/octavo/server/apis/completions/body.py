"""The bodies of /v1/completions, both ways."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo.outputs import GuideReceipt
from octavo.server.protocol.fields import FieldTable, Refused
from octavo.server.protocol.logprobs import CompletionLogprobs
from octavo.server.protocol.sampling import NOT_AVAILABLE, NOTED, SeveralFields
from octavo.server.protocol.usage import StreamOptions, Usage

COMPLETION_FIELDS: Final = FieldTable(
    noted=NOTED,
    refused={
        **NOT_AVAILABLE,
        "suffix": Refused("this model was not trained to fill gaps", ("",)),
        "best_of": Refused("set n, and choose among the answers by their logprobs", (1,)),
        "prompt_embeds": Refused("give text or token ids"),
    },
)
"""Fields of a completion request besides those of ``CompletionRequest``."""


class CompletionRequest(SeveralFields, kw_only=True):
    """One prompt or several to continue."""

    prompt: str | list[str | int | list[int]]
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool | None = None


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the texts, or its news."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET

    def with_nulls(self) -> CompletionChoice:
        """The choice as a whole answer has it: with null for what was not asked for."""
        for name in ("prompt_logprobs", "token_ids", "prompt_token_ids"):
            if getattr(self, name) is msgspec.UNSET:
                setattr(self, name, None)
        return self


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    guided: GuideReceipt | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
