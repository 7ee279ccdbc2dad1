"""What every route reports of tokens, and when."""

from __future__ import annotations

import msgspec

from octavo.outputs import RequestOutput
from octavo.server.http.errors import HttpError
from octavo.server.protocol.notes import Notes


class StreamOptions(msgspec.Struct):
    """What a stream tells besides the text."""

    include_usage: bool | None = None
    """A last event with the whole usage."""
    continuous_usage_stats: bool | None = None
    """Usage in every event, unless ``include_usage`` is false."""
    include_obfuscation: bool | None = None
    """No effect: nothing is padded."""


def check_stream_options(options: msgspec.Struct | None, notes: Notes, *, is_stream: bool) -> None:
    """Raise for options of a stream that nobody asked for."""
    if options is not None and not is_stream:
        raise HttpError(400, "stream_options needs stream=true", param="stream_options")
    if getattr(options, "include_obfuscation", False):
        notes.add("stream_options.include_obfuscation")


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

    def __init__(self, options: StreamOptions | None = None, *, is_forced: bool = False) -> None:
        """``is_forced``: the usage is told in all events and at the end, whatever is asked for."""
        options = options or StreamOptions()
        self._has_own_event = is_forced or bool(options.include_usage)
        wanted = options.include_usage is not False and options.continuous_usage_stats
        self._is_continuous = is_forced or bool(wanted)
        self._num_prompt: dict[str, int] = {}
        self._num_cached: dict[str, int] = {}
        self._num_completion = 0

    def add_prompt(self, output: RequestOutput) -> None:
        """Count the prompt alone, before anything of the answer is told."""
        self._num_prompt[output.request_id] = len(output.prompt_token_ids)
        self._num_cached[output.request_id] = output.metrics.num_cached_tokens

    def add(self, output: RequestOutput) -> None:
        """Take an output, whose tokens have not been counted yet."""
        self.add_prompt(output)
        self._num_completion += sum(len(each.token_ids) for each in output.outputs)

    @property
    def has_own_event(self) -> bool:
        """Whether a stream ends with an event for the usage."""
        return self._has_own_event

    def in_event(self) -> Usage | msgspec.UnsetType | None:
        """Return what an event with text says: null where the usage has an event of its own."""
        if self._is_continuous:
            return self.usage()
        return None if self.has_own_event else msgspec.UNSET

    def usage(self) -> Usage:
        """Return the sums."""
        num_prompt = sum(self._num_prompt.values())
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=self._num_completion,
            total_tokens=num_prompt + self._num_completion,
            prompt_tokens_details=PromptTokensDetails(sum(self._num_cached.values())),
        )
