"""What a step reads of the running sequences' state on the device, and what it writes there.

Everything is int32 unless said otherwise. Axis suffixes: S slots that sequences run in, R rows of
the step, R1 rows and one, T tokens of the step, L tokens that a slot has room for, B blocks of a
slot, N rows that sample, N1 one more, K the most tokens that a row yields. ``sampled_T`` has a
token for each row of logits.

A slot may stand several times in a step only if it is a padding slot, whose state is never
advanced. Counts stop at L, so that nothing is read or written out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels.build import I, KernelSpec, P
from octavo_kernels.library import library, stream_of
from octavo_kernels.step_state import reference
from octavo_kernels.step_state.drafts import DraftRows

SPEC = KernelSpec(
    name="step_state",
    functions={
        "octavo_scatter_words": (P, P, P, I),
        "octavo_step_inputs": (P, P, P, P, *(I, I, I, I), *(P, I, I, I), *(P, P, P, P, P)),
        "octavo_accept": (P, P, P, I, P, P, P, P, I, P, I, P, I),
        "octavo_advance": (P, P, P, I, P, P, I, P, P, P, I, I),
    },
)

MAX_TABLES = 8
"""Block tables that the kernel takes by value."""

MAX_ROWS = 12287
"""Each block of the kernel keeps the rows' starts in 48 KiB of shared memory."""


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """What a model and its attention take of a step's rows."""

    ids_T: Tensor
    """int64, as positions and cache slots are."""
    positions_T: Tensor
    rows_T: Tensor
    """The row of each token; int32."""
    context_lens_R: Tensor
    """Tokens in the cache once the step has written; int32."""
    cache_slots: list[Tensor]
    """For each table, where each token's key and value go: block * block_tokens + offset."""

    @classmethod
    def empty(
        cls, num_tokens: int, num_rows: int, num_tables: int, device: torch.device
    ) -> StepInputs:
        """Room for a step's inputs, not written yet."""
        longs = torch.empty((2 + num_tables, num_tokens), dtype=torch.int64, device=device)
        ints = torch.empty(num_tokens + num_rows, dtype=torch.int32, device=device)
        ids_T, positions_T, *cache_slots = longs.unbind(0)
        return cls(
            ids_T=ids_T,
            positions_T=positions_T,
            rows_T=ints[:num_tokens],
            context_lens_R=ints[num_tokens:],
            cache_slots=cache_slots,
        )


def scatter_words_(arena: Tensor, indices: Tensor, values: Tensor) -> None:
    """Write each value at its index of the arena; negative indices are padding and are skipped.

    No index may come twice. On CUDA both lists may lie in pinned memory of the host.
    """
    if indices.shape != values.shape or indices.dim() != 1:
        raise ValueError(
            f"scatter_words_: indices {list(indices.shape)} and values {list(values.shape)} must "
            "be two lists of one length"
        )
    _check("scatter_words_", arena=arena, indices=indices, values=values)
    if arena.device.type != "cuda":
        reference.scatter_words_(arena, indices, values)
    elif indices.shape[0]:
        index = arena.device.index
        library(SPEC, index).octavo_scatter_words(
            arena.data_ptr(),
            indices.data_ptr(),
            values.data_ptr(),
            indices.shape[0],
            stream_of(index),
        )


def step_inputs(
    slots_R: Tensor,
    query_starts_R1: Tensor,
    computed_S: Tensor,
    tokens_SL: Tensor,
    tables: Sequence[Tensor],
    *,
    num_tokens: int,
    block_tokens: int,
    out: StepInputs | None = None,
) -> StepInputs:
    """Look up what the step's tokens are and where they stand; the result is ``out`` if given.

    Row r's tokens are ``query_starts_R1[r]:query_starts_R1[r + 1]``, the ones after the
    ``computed_S[slots_R[r]]`` that are in the cache. Tokens past the last row count as its own.
    ``tables`` are the block tables [S, B] of the cache groups.
    """
    num_rows = slots_R.shape[0]
    _check(
        "step_inputs",
        slots=slots_R,
        query_starts=query_starts_R1,
        computed=computed_S,
        tokens=tokens_SL,
        **{f"tables[{i}]": table_SB for i, table_SB in enumerate(tables)},
    )
    if query_starts_R1.shape[0] != num_rows + 1 or not 1 <= num_rows <= MAX_ROWS:
        raise ValueError(
            f"step_inputs: {num_rows} slots and {query_starts_R1.shape[0]} query starts; there "
            f"must be 1 to {MAX_ROWS} slots, and one start more"
        )
    if len(tables) > MAX_TABLES or any(table.shape != tables[0].shape for table in tables):
        raise ValueError(
            f"step_inputs: tables of shapes {[list(table.shape) for table in tables]}; there may "
            f"be {MAX_TABLES} of one shape"
        )
    device = slots_R.device
    if out is None:
        out = StepInputs.empty(num_tokens, num_rows, len(tables), device)
    elif (
        out.ids_T.shape[0] != num_tokens
        or out.context_lens_R.shape[0] != num_rows
        or len(out.cache_slots) != len(tables)
    ):
        raise ValueError(
            f"step_inputs: out has room for {out.ids_T.shape[0]} tokens, "
            f"{out.context_lens_R.shape[0]} rows and {len(out.cache_slots)} tables; the step has "
            f"{num_tokens}, {num_rows} and {len(tables)}"
        )
    if device.type != "cuda":
        found = reference.step_inputs(
            slots_R,
            query_starts_R1,
            computed_S,
            tokens_SL,
            list(tables),
            num_tokens,
            block_tokens,
        )
        for target, values in zip(_tensors(out), (*found[:4], *found[4]), strict=True):
            target.copy_(values)
        return out
    library(SPEC, device.index).octavo_step_inputs(
        slots_R.data_ptr(),
        query_starts_R1.data_ptr(),
        computed_S.data_ptr(),
        tokens_SL.data_ptr(),
        num_rows,
        num_tokens,
        tokens_SL.shape[1],
        block_tokens,
        (c_void_p * MAX_TABLES)(*(table_SB.data_ptr() for table_SB in tables)),
        len(tables),
        tables[0].shape[1] if tables else 0,
        tables[0].stride(0) if tables else 0,
        out.ids_T.data_ptr(),
        out.positions_T.data_ptr(),
        out.rows_T.data_ptr(),
        out.context_lens_R.data_ptr(),
        (c_void_p * MAX_TABLES)(*(slots_T.data_ptr() for slots_T in out.cache_slots)),
        stream_of(device.index),
    )
    return out


def accept_(
    slots_R: Tensor,
    query_starts_R1: Tensor,
    computed_S: Tensor,
    sample_slots_N: Tensor,
    sampled_T: Tensor,
    num_tokens_S: Tensor,
    tokens_SL: Tensor,
    *,
    max_len_S: Tensor | None = None,
    drafts: DraftRows | None = None,
    padding_slot: int = -1,
) -> None:
    """Count what a step has computed, and append to their slots the samples that count.

    Without ``drafts`` each slot that sampled has one sample. With them the first of its samples
    counts, and each further one as long as the draft before it was what the sample before it is;
    drafts stand behind the tokens of a slot. What was computed of the others does not count.
    A slot has ``max_len_S`` tokens at most, or L, and its last one is never computed: where it has
    them all, what it samples stands for the last. ``padding_slot`` stays as it is, however many
    rows it has.
    """
    num_rows, num_sampled = slots_R.shape[0], sample_slots_N.shape[0]
    if query_starts_R1.shape[0] != num_rows + 1:
        raise ValueError(
            f"accept_: {query_starts_R1.shape[0]} query starts for {num_rows} slots; one more is "
            "wanted"
        )
    if drafts is None and sampled_T.shape[0] != num_sampled:
        raise ValueError(
            f"accept_: {sampled_T.shape[0]} samples for {num_sampled} slots that sampled"
        )
    _check(
        "accept_",
        slots=slots_R,
        query_starts=query_starts_R1,
        computed=computed_S,
        sample_slots=sample_slots_N,
        sampled=sampled_T,
        num_tokens=num_tokens_S,
        tokens=tokens_SL,
        **({} if max_len_S is None else {"max_len": max_len_S}),
    )
    if drafts is not None:
        _check_drafts(drafts, num_sampled)
    index = slots_R.device.index
    if slots_R.device.type != "cuda":
        reference.accept_(
            slots_R,
            query_starts_R1,
            computed_S,
            sample_slots_N,
            sampled_T,
            num_tokens_S,
            tokens_SL,
            max_len_S,
            drafts,
            padding_slot,
        )
        return
    most_lens = None if max_len_S is None else max_len_S.data_ptr()
    if drafts is not None and num_sampled:
        library(SPEC, index).octavo_accept(
            sample_slots_N.data_ptr(),
            sampled_T.data_ptr(),
            drafts.starts_N1.data_ptr(),
            num_sampled,
            computed_S.data_ptr(),
            num_tokens_S.data_ptr(),
            tokens_SL.data_ptr(),
            most_lens,
            tokens_SL.shape[1],
            drafts.tokens_NK.data_ptr(),
            drafts.most_tokens,
            drafts.counts_N.data_ptr(),
            padding_slot,
            stream_of(index),
        )
        num_sampled = 0
    if num_rows or num_sampled:
        library(SPEC, index).octavo_advance(
            slots_R.data_ptr(),
            query_starts_R1.data_ptr(),
            computed_S.data_ptr(),
            num_rows,
            sample_slots_N.data_ptr(),
            sampled_T.data_ptr(),
            num_sampled,
            num_tokens_S.data_ptr(),
            tokens_SL.data_ptr(),
            most_lens,
            tokens_SL.shape[1],
            padding_slot,
            stream_of(index),
        )


def _tensors(inputs: StepInputs) -> list[Tensor]:
    named = (inputs.ids_T, inputs.positions_T, inputs.rows_T, inputs.context_lens_R)
    return [*named, *inputs.cache_slots]


def _check_drafts(drafts: DraftRows, num_sampled: int) -> None:
    named = {
        "starts": drafts.starts_N1,
        "yielded tokens": drafts.tokens_NK,
        "counts": drafts.counts_N,
    }
    _check("accept_", **named)
    shapes = [list(tensor.shape) for tensor in named.values()]
    if shapes != [[num_sampled + 1], [num_sampled, drafts.most_tokens], [num_sampled]]:
        raise ValueError(
            f"accept_: starts, yielded tokens and counts are of {shapes}, with {num_sampled} slots "
            "that sampled"
        )


def _check(function: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.int32:
            raise ValueError(f"{function}: {name} is {tensor.dtype}; it must be torch.int32")
        if not tensor.is_contiguous():
            raise ValueError(f"{function}: {name} of strides {tensor.stride()} must be contiguous")


__all__ = [
    "MAX_ROWS",
    "MAX_TABLES",
    "SPEC",
    "DraftRows",
    "StepInputs",
    "accept_",
    "scatter_words_",
    "step_inputs",
]
