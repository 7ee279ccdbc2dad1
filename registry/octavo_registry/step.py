"""One forward pass over the shared paged cache, as models and attention backends see it.

Axis suffixes: A position axes (1, or 3 for M-RoPE), T tokens of the step, R rows (one per running
sequence), S slots that sequences run in, B blocks of a slot, L layers. Tensors lie on the device;
nothing here may be read back by the host on CUDA, for which ``StepBounds`` holds what it knows.
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
    """Tokens in the cache once this step has written; exact unless tokens may be rejected, the
    group is of kind "cross", or the step is recorded to be run again with other lengths: then the
    most there may be."""
    whole_R: NDArray[np.bool_] | None = None
    """Rows whose tokens see all of their row's context, and no more than their window of what is
    before them; None: none. Only for a ``CacheSpec`` with ``whole_rows``."""


@dataclass(slots=True, kw_only=True)
class AttentionStep:
    """What one cache group's attention calls share in one step.

    Row r's queries are tokens ``query_starts_R1[r]:query_starts_R1[r + 1]``; they are the last of
    its ``context_lens_R[r]`` tokens. Its blocks stand in line ``table_rows_R[r]`` of ``table_SB``:
    entry ``p // block`` holds position p; entries before a window and past the context are
    arbitrary but valid block ids. One sequence may have several rows, which follow each other in it
    and have one line; all keys of a step are written before any is read.

    In a group of kind "cross" the context is a row's encoded media, which all its queries see:
    ``positions_T`` and ``slots_T`` mean nothing there. In one of kind "step" the context is the
    row's queries, and nothing has a place: ``block_tokens`` is 0, tables and slots are empty.
    """

    block_tokens: int
    query_starts_R1: Tensor
    """int32, as the others where nothing is said."""
    context_lens_R: Tensor
    token_rows_T: Tensor
    """The row of each token."""
    positions_T: Tensor
    """Index of each token in its sequence; int64."""
    table_SB: Tensor
    """The block tables of all slots."""
    table_rows_R: Tensor
    slots_T: Tensor
    """Where each token's key and value go: block * block_tokens + offset; int64."""
    bounds: StepBounds
    batch_invariant: bool = False
    """A row's result must have the same bits whatever rows stand beside it, and however its tokens
    were cut into steps."""
    prepared: Any = None
    """What ``AttentionBackend.prepare`` made for this step and group."""

    def block_table_RB(self) -> Tensor:
        """The rows' block tables as one tensor, as wide as the longest context asks for."""
        num_blocks = -(-int(self.bounds.context_lens_R.max()) // self.block_tokens)
        return self.table_SB[:, :num_blocks].index_select(0, self.table_rows_R)


@dataclass(slots=True, kw_only=True)
class LayerCache:
    """Where one layer's cache lives: backend, its view of the pool, and the layer's group."""

    backend: AttentionBackend
    view: Any
    group: int


@dataclass(slots=True, kw_only=True)
class MediaRows:
    """What media bring to a step: rows that take the places of tokens' embeddings.

    Axis suffixes: M tokens of the step that stand for media, W entries of a row: the first are the
    embedding, others are for layers, as the model's ``encode`` has made them.
    """

    tokens_M: Tensor
    """Indices into T; int64."""
    rows_MW: Tensor


@dataclass(slots=True, kw_only=True)
class StateView:
    """Where one layer's recurrent states live, as its ``CacheSpec`` says: [lines, *shape]."""

    tensors: tuple[Tensor, ...]
    log: tuple[Tensor, ...]
    """What the tokens of a line's last step add: [lines, entries, *shape]."""


@dataclass(slots=True, kw_only=True)
class StateStep:
    """What the layers with a recurrent state share in one step.

    Row r's state and log stand in line ``lines_R[r]`` of each view. A layer takes the state, adds
    the first ``num_logged_R[r]`` entries of the log to it, then the row's tokens one by one. It
    leaves there the state behind the first ``num_final_R[r]`` of these, and as the log what the
    others add, from its first entry on: they may turn out not to count. Rows that only fill up a
    step have one line, of which nothing is expected.
    """

    query_starts_R1: Tensor
    """int32, as the others."""
    token_rows_T: Tensor
    """The row of each token."""
    lines_R: Tensor
    num_logged_R: Tensor
    num_final_R: Tensor
    bounds: StepBounds


@dataclass(slots=True, kw_only=True)
class Step:
    """One forward: tokens of many rows, packed without padding."""

    num_tokens: int
    num_rows: int
    query_starts_R1: Tensor
    """Row r has the tokens ``query_starts_R1[r]:query_starts_R1[r + 1]``; int32."""
    bounds: StepBounds
    positions_AT: Tensor
    groups: tuple[AttentionStep, ...]
    """One per cache group; ``layers[name].group`` indexes it."""
    layers: Mapping[str, LayerCache]
    """Caches of the layers, by the names that ``Model.cache_specs`` gave."""
    sample_tokens_R: Tensor
    """Indices into T of the tokens whose logits, or hidden states, are asked for; may be longer
    than the rows."""
    state: StateStep | None = None
    """None: no layer has a recurrent state."""
    states: Mapping[str, StateView] = field(default_factory=dict)
    """Views of layers that have one, by the names that ``Model.cache_specs`` gave."""
    media: MediaRows | None = None
    token_types_T: Tensor | None = None
    """0, or 1 for tokens of a text's second part; int64. None: all are 0."""
    only_sampled: bool = False
    """Only the last layer's hidden states of ``sample_tokens_R`` are asked for, which then
    names no token twice; the others may hold anything."""
