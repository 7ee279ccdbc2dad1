"""A planned step as it goes to the device: one packed int32 buffer and a few host-side facts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.cache.tables import BlockMoves
from octavo.engine.messages import TokenSampling
from octavo.execution.state_layout import StateDiff

Ints = NDArray[np.int32]

SECTIONS = (
    "diff_indices",  # into the state arena
    "diff_values",
    "slots",  # of the step's rows
    "query_starts",  # one more than rows
    "token_rows",  # of each token
    "token_offsets",  # within its row's query
    "sample_slots",  # of the rows that draw a token
    "logit_tokens",  # tokens whose logits are needed: first those that draw, then prompt logprobs
    "prompt_targets",  # the token that follows each of the latter
)


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """What the device does in one step. ``sizes`` are the lengths of SECTIONS in ``buffer``."""

    step_id: int
    buffer: Ints
    sizes: tuple[int, ...]
    num_tokens: int
    num_rows: int
    query_lens: Ints
    context_lens: Ints
    """Upper bounds by row."""
    features: Ints
    """RowFeature bits of the rows that draw."""
    num_logprobs: int
    """Largest number that a drawing row asked for; -1: none did."""
    num_prompt_logprobs: int
    max_top_k: int
    max_num_tokens: int
    """Upper bound of the drawing rows' lengths."""
    attach: list[tuple[int, TokenSampling]] = field(default_factory=list)
    """Slots whose new sequence brings parameters that name tokens, or meets processors."""
    detach: list[int] = field(default_factory=list)
    """Slots whose sequence has left, where there are processors; done before ``attach``."""
    moves: BlockMoves = field(default_factory=BlockMoves)


def pack_sections(diff: StateDiff, *sections: Ints) -> tuple[Ints, tuple[int, ...]]:
    """Lay the diff and the step's index arrays into one buffer; returns it and the sizes."""
    indices, values = diff.pack()
    num_words = sum(len(piece) for piece in indices)
    sizes = (num_words, num_words, *(len(section) for section in sections))
    buffer = np.concatenate([*indices, *values, *sections], dtype=np.int32)
    return buffer, sizes


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What the host learns of a step, one step late."""

    tokens: Ints
    """One for each drawing row."""
    logprobs: LogprobArrays | None = None
    prompt_logprobs: LogprobArrays | None = None


@dataclass(slots=True, kw_only=True)
class LogprobArrays:
    """By row: the chosen token first, then the likeliest in order."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
