"""The bodies of /v1/completions, both ways."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from octavo.outputs import TokenLogprobs
from octavo.server.protocol.fields import FieldTable, Refused
from octavo.server.protocol.sampling import NO_EFFECT, NOT_AVAILABLE, SeveralFields
from octavo.server.protocol.usage import StreamOptions, Usage, json_number

COMPLETION_FIELDS: Final = FieldTable(
    no_effect=NO_EFFECT,
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
    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False


class CompletionLogprobs(msgspec.Struct):
    """Of a text, token by token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the texts, or its news."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or one event of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class LogprobText:
    """Puts the logprobs of one text into OpenAI's older form, whose offsets run on."""

    def __init__(self, num_top: int, *, as_ids: bool) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def take(self, tokens: list[TokenLogprobs | None], texts: list[str]) -> CompletionLogprobs:
        """Take the next tokens; ``texts`` names those without candidates (a prompt's first)."""
        made = CompletionLogprobs([], [], [], [])
        for candidates, text in zip(tokens, texts, strict=True):
            made.text_offset.append(self._offset)
            self._offset += len(text)
            if candidates is None:
                made.tokens.append(text)
                made.token_logprobs.append(None)
                made.top_logprobs.append(None)
                continue
            chosen, *_ = candidates
            named: dict[str, float] = {}
            for token, entry in candidates.items():  # the chosen one first
                if token == chosen or (entry.rank or 0) <= self._num_top:
                    # Parts of a character may share their text; the likelier one shows.
                    named.setdefault(self._name(token, entry.decoded_token), json_number(entry))
            made.tokens.append(self._name(chosen, text))
            made.token_logprobs.append(json_number(candidates[chosen]))
            made.top_logprobs.append(named if self._num_top else None)
        return made

    def _name(self, token: int, text: str | None) -> str:
        return f"token_id:{token}" if self._as_ids else (text or "")
