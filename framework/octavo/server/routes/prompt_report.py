"""Logprobs of a prompt's own tokens, in vLLM's form: OpenAI has none."""

from __future__ import annotations

from typing import Any

from octavo.outputs import TokenLogprobs
from octavo.server.protocol.usage import json_number


def prompt_logprobs(
    tokens: list[TokenLogprobs | None], num_top: int
) -> list[dict[str, Any] | None]:
    """Candidates by token id: the prompt's own and the likeliest; the first token has none."""
    return [
        None
        if candidates is None
        else {
            str(token): {
                "logprob": json_number(entry),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for place, (token, entry) in enumerate(candidates.items())
            if place == 0 or (entry.rank or 0) <= num_top
        }
        for candidates in tokens
    ]
