"""Token counts, as every route reports them."""

from __future__ import annotations

import msgspec

from octavo.outputs import RequestOutput


class PromptTokensDetails(msgspec.Struct):
    """What is known of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """What a request has cost so far, as delivered."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class UsageCount:
    """Counts over the outputs of one request, or of several that answer one call."""

    def __init__(self) -> None:
        self._num_prompt: dict[str, int] = {}
        self._num_cached: dict[str, int] = {}
        self._num_completion = 0

    def add(self, output: RequestOutput) -> None:
        """Take an output, whose tokens have not been counted yet."""
        self._num_prompt[output.request_id] = len(output.prompt_token_ids)
        self._num_cached[output.request_id] = output.metrics.num_cached_tokens
        self._num_completion += sum(len(each.token_ids) for each in output.outputs)

    def usage(self) -> Usage:
        """Return the sums."""
        num_prompt = sum(self._num_prompt.values())
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=self._num_completion,
            total_tokens=num_prompt + self._num_completion,
            prompt_tokens_details=PromptTokensDetails(sum(self._num_cached.values())),
        )
