"""What the steps on the device state are. Axis suffixes as in the package's docstring."""

import torch
from torch import Tensor

from octavo_kernels.step_state.drafts import DraftRows


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


def accept_(
    slots_R: Tensor,
    query_starts_R1: Tensor,
    computed_S: Tensor,
    sample_slots_N: Tensor,
    sampled_T: Tensor,
    num_tokens_S: Tensor,
    tokens_SL: Tensor,
    max_len_S: Tensor | None,
    drafts: DraftRows | None,
    padding_slot: int,
) -> None:
    """Count what a step has computed, and append the samples that count."""
    last_S = torch.full_like(num_tokens_S, tokens_SL.shape[1] - 1)
    if max_len_S is not None:
        last_S = last_S.minimum(max_len_S - 1)
    if drafts is None:
        is_sampled_N = sample_slots_N != padding_slot
        slots_N, sampled_N = sample_slots_N[is_sampled_N].long(), sampled_T[is_sampled_N]
        positions_N = num_tokens_S[slots_N].minimum(last_S[slots_N])
        tokens_SL[slots_N, positions_N.long()] = sampled_N
        num_tokens_S[slots_N] = positions_N + 1
    else:
        drafts.tokens_NK.fill_(-1)
        drafts.counts_N.zero_()
        for row, slot in enumerate(sample_slots_N.tolist()):
            if slot != padding_slot:
                _accept_row(
                    row, slot, sampled_T, computed_S, num_tokens_S, tokens_SL, last_S, drafts
                )
    lens_R, is_row_R = query_starts_R1.diff(), slots_R != padding_slot
    slots_R, lens_R = slots_R[is_row_R].long(), lens_R[is_row_R]
    computed_S[slots_R] = (computed_S[slots_R] + lens_R).minimum(last_S[slots_R])


def _accept_row(
    row: int,
    slot: int,
    sampled_T: Tensor,
    computed_S: Tensor,
    num_tokens_S: Tensor,
    tokens_SL: Tensor,
    last_S: Tensor,
    drafts: DraftRows,
) -> None:
    """Append what counts of one row's samples, and take back what was computed of the others."""
    first, end = drafts.starts_N1[row : row + 2].tolist()
    if end <= first:
        return
    last = int(last_S[slot])
    begin = min(int(num_tokens_S[slot]), last)
    most = min(end - first, last + 1 - begin, drafts.most_tokens)
    count = 1
    while count < most and sampled_T[first + count - 1] == tokens_SL[slot, begin + count - 1]:
        count += 1
    yielded = sampled_T[first : first + count]
    tokens_SL[slot, begin : begin + count] = drafts.tokens_NK[row, :count] = yielded
    num_tokens_S[slot] = begin + count
    drafts.counts_N[row] = count
    computed_S[slot] -= end - first - count
