"""What the steps on the device state are. Axis suffixes as in the package's docstring."""

import torch
from torch import Tensor


def scatter_words_(arena: Tensor, indices: Tensor, values: Tensor) -> None:
    """Write each value at its index; negative indices are padding."""
    kept = indices >= 0
    arena.index_copy_(0, indices[kept].long(), values[kept])


def step_inputs(
    slots_R: Tensor,
    query_starts_R1: Tensor,
    computed_S: Tensor,
    tokens_SL: Tensor,
    tables: list[Tensor],
    num_tokens: int,
    block_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """Return ids, positions, rows, context lengths and each table's cache slots."""
    last = tokens_SL.shape[1] - 1
    slots_R = slots_R.long()
    computed_R = computed_S[slots_R]
    tokens_T = torch.arange(num_tokens, dtype=torch.int32, device=slots_R.device)
    rows_T = torch.searchsorted(query_starts_R1, tokens_T, right=True, out_int32=True) - 1
    rows_T = rows_T.clamp_(max=len(slots_R) - 1)
    positions_T = computed_R[rows_T] + tokens_T - query_starts_R1[rows_T]
    positions_T = positions_T.clamp_(max=last).long()
    slots_T = slots_R[rows_T]
    cache_slots = []
    for table_SB in tables:
        columns_T = (positions_T // block_tokens).clamp_(max=table_SB.shape[1] - 1)
        blocks_T = table_SB[slots_T, columns_T].long()
        cache_slots.append(blocks_T * block_tokens + positions_T % block_tokens)
    context_lens_R = (computed_R + query_starts_R1.diff()).clamp_(max=last + 1)
    return tokens_SL[slots_T, positions_T].long(), positions_T, rows_T, context_lens_R, cache_slots


def advance_(
    slots_R: Tensor,
    query_starts_R1: Tensor,
    computed_S: Tensor,
    drawn_slots_D: Tensor,
    drawn_tokens_D: Tensor,
    num_tokens_S: Tensor,
    tokens_SL: Tensor,
    padding_slot: int,
) -> None:
    """Count what a step has computed, and append what it has drawn."""
    length = tokens_SL.shape[1]
    lens_R, is_row_R = query_starts_R1.diff(), slots_R != padding_slot
    slots_R, lens_R = slots_R[is_row_R].long(), lens_R[is_row_R]
    is_drawn_D = drawn_slots_D != padding_slot
    drawn_slots_D, drawn_tokens_D = drawn_slots_D[is_drawn_D].long(), drawn_tokens_D[is_drawn_D]
    computed_S[slots_R] = (computed_S[slots_R] + lens_R).clamp_(max=length)
    positions_D = num_tokens_S[drawn_slots_D].clamp_(max=length - 1)
    tokens_SL[drawn_slots_D, positions_D.long()] = drawn_tokens_D
    num_tokens_S[drawn_slots_D] = positions_D + 1
