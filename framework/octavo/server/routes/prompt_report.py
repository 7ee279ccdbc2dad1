"""Logprobs of a prompt's own tokens, in vLLM's form: OpenAI has none."""

from __future__ import annotations

from typing import Any

from octavo.outputs import TokenLogprobs


def prompt_logprobs(tokens: list[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """Candidates by token id; the first token has none."""
    return [
        None
        if candidates is None
        else {
            str(token): {
                "logprob": max(entry.logprob, -9999.0),  # JSON has no infinity
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token, entry in candidates.items()
        }
        for candidates in tokens
    ]
