"""What the event hooks tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine was started with, once all is known."""

    model: str
    architecture: str
    dtype: str
    max_model_len: int
    vocab_size: int
    block_tokens: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """How one request ended; sent after its last output was delivered."""

    request_id: str
    finish_reasons: tuple[str, ...]
    """One for each continuation: stop, length, abort or error."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """Tokens of all continuations, as delivered."""
    seconds_to_first_token: float | None
    """None when no token was delivered."""
    seconds: float
    """From arrival to end."""
    seconds_in_queue: float | None = None
    """From arrival in the engine to the first step."""
    seconds_in_prefill: float | None = None
    """From the first step to the first token."""
    num_preemptions: int = 0
    error: str | None = None
    extra_args: Mapping[str, object] | None = None
    """What the request carried for plugins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFailure:
    """A plugin's exception, already counted."""

    plugin: str
    call: str
    """The hook, or what was called."""
    error: str
    """Type and message in one line."""
    count: int
    """Failures of this plugin in this call so far."""
    quarantined: bool
    """Whether the plugin is paused because of it."""
