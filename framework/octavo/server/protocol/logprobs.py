"""Log probabilities as routes report them: OpenAI's two forms, and vLLM's of a prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.outputs import Logprob, RequestOutput, TokenLogprobs


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
    """Log probabilities of a message, token by token."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Log probabilities of a text, token by token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


def chat_logprobs(tokens: list[TokenLogprobs], num_top: int, *, as_ids: bool) -> ChatLogprobs:
    """OpenAI's form of logprobs; of each token the chosen one comes first."""
    content = []
    for candidates in tokens:
        named = [
            TopLogprob(
                token=f"token_id:{token}" if as_ids else (entry.decoded_token or ""),
                logprob=_json_number(entry),
                bytes=list(entry.token_bytes),
            )
            for token, entry in candidates.items()
        ]
        ranks = [entry.rank or 0 for entry in candidates.values()]
        top = [one for rank, one in sorted(zip(ranks, named, strict=True), key=lambda e: e[0])]
        chosen = named[0]
        content.append(ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, top[:num_top]))
    return ChatLogprobs(content)


class LogprobText:
    """Puts the logprobs of one text into OpenAI's older form, whose offsets run on."""

    def __init__(self, num_top: int, *, as_ids: bool) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def take(
        self, ids: list[int], tokens: list[TokenLogprobs | None], texts: list[str]
    ) -> CompletionLogprobs:
        """Take the next tokens; a prompt's first has no candidates."""
        made = CompletionLogprobs([], [], [], [])
        for chosen, candidates, text in zip(ids, tokens, texts, strict=True):
            made.text_offset.append(self._offset)
            self._offset += len(text)
            if candidates is None:
                made.tokens.append(self._name(chosen, text))
                made.token_logprobs.append(None)
                made.top_logprobs.append(None)
                continue
            named: dict[str, float] = {}
            for token, entry in candidates.items():  # the chosen one first
                if token == chosen or (entry.rank or 0) <= self._num_top:
                    # Parts of a character may share their text; the likelier one shows.
                    named.setdefault(self._name(token, entry.decoded_token), _json_number(entry))
            made.tokens.append(self._name(chosen, text))
            made.token_logprobs.append(_json_number(candidates[chosen]))
            made.top_logprobs.append(named)
        return made

    def _name(self, token: int, text: str | None) -> str:
        return f"token_id:{token}" if self._as_ids else (text or "")


def prompt_logprobs(
    output: RequestOutput, num_top: int | msgspec.UnsetType
) -> list[dict[str, Any] | None] | msgspec.UnsetType:
    """In vLLM's form: candidates by token id, the prompt's own and the likeliest.

    A prompt's first token has none, and there is nothing to say where ``num_top`` is unset.
    """
    if num_top is msgspec.UNSET:
        return msgspec.UNSET
    return [
        None
        if candidates is None
        else {
            str(token): {
                "logprob": _json_number(entry),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for place, (token, entry) in enumerate(candidates.items())
            if place == 0 or (entry.rank or 0) <= num_top
        }
        for candidates in output.prompt_logprobs or []
    ]


def _json_number(logprob: Logprob) -> float:
    """The log probability; JSON has no infinity."""
    return max(logprob.logprob, -9999.0)
