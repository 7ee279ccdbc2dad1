"""One forward pass over the shared paged cache, as models and attention backends see it.

Axis suffixes: A position axes (1, or 3 for M-RoPE), T tokens of the step, R rows (one per running
sequence), B blocks of a row, L layers. Tensors lie on the device at fixed addresses; nothing here
may be read back by the host on CUDA, for which ``StepBounds`` holds what the host knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from octavo_registry.attention import AttentionBackend


@dataclass(slots=True, kw_only=True)
class StepBounds:
    """Host-side facts of a step: exact query lengths, upper bounds of context lengths."""

    query_lens_R: NDArray[np.int32]
    context_lens_R: NDArray[np.int32]
    """Tokens in the cache once this step has written; exact unless tokens may be rejected."""


@dataclass(slots=True, kw_only=True)
class AttentionStep:
    """What one cache group's attention calls share in one step.

    Row r's queries are tokens ``query_starts_R1[r]:query_starts_R1[r + 1]``; they are the last
    ``query_len`` of its ``context_lens_R[r]`` tokens. ``block_table_RB[r, p // block]`` holds
    position p; entries before a window and past the context are arbitrary but valid block ids.
    """

    block_tokens: int
    query_starts_R1: Tensor
    context_lens_R: Tensor
    token_rows_T: Tensor
    """The row of each token."""
    positions_T: Tensor
    """Index of each token in its sequence; int64."""
    block_table_RB: Tensor
    slots_T: Tensor
    """Where each token's key and value go: block * block_tokens + offset; int64."""
    bounds: StepBounds
    plan: Any = None
    """What ``AttentionBackend.plan`` made for this step and group."""


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Where one layer's cache lives: backend, its view of the pool, and the layer's group."""

    backend: AttentionBackend
    view: Any
    group: int


@dataclass(slots=True, kw_only=True)
class Step:
    """One forward: tokens of many rows, packed without padding."""

    num_tokens: int
    num_rows: int
    positions_AT: Tensor
    groups: tuple[AttentionStep, ...]
    """One per cache group; ``layers[name].group`` indexes it."""
    layers: Mapping[str, LayerCache]
    """By the names that ``Model.cache_specs`` gave."""
    sample_tokens_R: Tensor
    """Indices into T of the tokens whose logits are asked for; may be longer than the rows."""
    adapter_ids_R: Tensor | None = None
    """LoRA slot of each row, -1 for none; None when no adapters are enabled."""
    media: Mapping[str, Any] = field(default_factory=dict)
