from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels.step_state import (
    DraftRows,
    StepInputs,
    accept_,
    reference,
    scatter_words_,
    step_inputs,
)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_words_are_written_where_they_belong_and_padding_is_skipped() -> None:
    arena = torch.zeros(6, dtype=torch.int32)
    scatter_words_(arena, ints(4, -1, 0), ints(7, 8, 9))
    assert arena.tolist() == [9, 0, 0, 0, 7, 0]
    scatter_words_(arena, ints(), ints())
    assert arena.tolist() == [9, 0, 0, 0, 7, 0]


def test_each_token_finds_its_row_position_id_and_cache_slot() -> None:
    tokens_SL = torch.arange(40, dtype=torch.int32).view(4, 10)
    table_SB = torch.arange(12, dtype=torch.int32).view(4, 3)
    found = step_inputs(
        *(ints(2, 0, 1), ints(0, 2, 2, 5), ints(0, 3, 5, 0), tokens_SL, [table_SB]),
        num_tokens=5,
        block_tokens=4,
    )
    assert found.rows_T.tolist() == [0, 0, 2, 2, 2]
    assert found.positions_T.tolist() == [5, 6, 3, 4, 5]
    assert found.ids_T.tolist() == [25, 26, 13, 14, 15]
    assert found.context_lens_R.tolist() == [7, 0, 6]
    assert found.cache_slots[0].tolist() == [7 * 4 + 1, 7 * 4 + 2, 3 * 4 + 3, 4 * 4, 4 * 4 + 1]
    assert found.ids_T.dtype == found.positions_T.dtype == torch.int64


def test_padding_tokens_and_slots_stay_within_bounds() -> None:
    found = step_inputs(
        *(ints(0, 0), ints(0, 1, 2), ints(9), torch.ones(1, 4, dtype=torch.int32)),
        [torch.ones(1, 1, dtype=torch.int32)],
        num_tokens=6,
        block_tokens=4,
    )
    assert found.positions_T.tolist() == [3] * 6
    assert found.context_lens_R.tolist() == [4, 4]
    assert found.rows_T.tolist() == [0, 1, 1, 1, 1, 1]


def test_a_step_is_counted_and_what_it_drew_is_appended() -> None:
    tokens_SL = torch.zeros(3, 4, dtype=torch.int32)
    computed_S, num_tokens_S = ints(0, 3, 1), ints(1, 4, 2)
    accept_(
        *(ints(2, 0), ints(0, 1, 2), computed_S, ints(2, 1), ints(8, 9), num_tokens_S, tokens_SL)
    )
    assert computed_S.tolist() == [1, 3, 2]
    assert tokens_SL.tolist() == [[0] * 4, [0, 0, 0, 9], [0, 0, 8, 0]]
    assert num_tokens_S.tolist() == [1, 4, 3]


def test_arguments_that_do_not_fit_are_refused() -> None:
    tokens_SL = torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"indices \[2\] and values \[3\]"):
        scatter_words_(ints(0), ints(1, 2), ints(1, 2, 3))
    with pytest.raises(ValueError, match=r"computed is torch\.int64"):
        step_inputs(
            *(ints(0), ints(0, 1), torch.zeros(3, dtype=torch.int64), tokens_SL, []),
            num_tokens=1,
            block_tokens=4,
        )
    with pytest.raises(ValueError, match="2 slots and 2 query starts"):
        step_inputs(
            *(ints(0, 1), ints(0, 1), ints(0, 0, 0), tokens_SL, []), num_tokens=1, block_tokens=4
        )
    with pytest.raises(ValueError, match="out has room for 3 tokens, 1 rows and 0 tables"):
        step_inputs(
            *(ints(0), ints(0, 1), ints(0, 0, 0), tokens_SL, []),
            num_tokens=1,
            block_tokens=4,
            out=StepInputs.empty(3, 1, 0, torch.device("cpu")),
        )
    with pytest.raises(ValueError, match="1 samples for 2 slots that sampled"):
        accept_(
            *(ints(0), ints(0, 1), ints(0, 0, 0), ints(0, 1), ints(0), ints(0, 0, 0), tokens_SL)
        )
    with pytest.raises(ValueError, match=r"of \[\[2\], \[1, 3\], \[1\]\], with 2 slots"):
        accept_(
            *(ints(0), ints(0, 1), ints(0, 0, 0), ints(0, 1), ints(0), ints(0, 0, 0), tokens_SL),
            drafts=DraftRows.empty(ints(0, 1), 3),
        )


def yields(starts: list[int], most: int) -> DraftRows:
    """Poisoned, so that what is not written is seen."""
    drafts = DraftRows.empty(ints(*starts), most)
    drafts.tokens_NK.fill_(-7)
    drafts.counts_N.fill_(-7)
    return drafts


def test_drafts_count_as_far_as_they_are_what_was_sampled() -> None:
    # Slots with drafts 5 6 7: all right; the second wrong; the first wrong; and one without any.
    tokens_SL = ints(1, 5, 6, 7, 0, 0).repeat(4, 1)
    num_tokens_S, computed_S = ints(1, 1, 1, 1), ints(0, 0, 0, 0)
    sampled_T = ints(5, 6, 7, 8, 5, 9, 7, 8, 4, 6, 7, 8, 3)
    drafts = yields([0, 4, 8, 12, 13], 5)
    slots_N = ints(0, 1, 2, 3)
    starts_R1 = ints(0, 4, 8, 12, 13)
    accept_(
        *(slots_N, starts_R1, computed_S, slots_N, sampled_T, num_tokens_S, tokens_SL),
        drafts=drafts,
    )
    assert drafts.counts_N.tolist() == [4, 2, 1, 1]
    assert drafts.tokens_NK.tolist() == [
        [5, 6, 7, 8, -1],
        [5, 9, -1, -1, -1],
        [4, -1, -1, -1, -1],
        [3, -1, -1, -1, -1],
    ]
    assert num_tokens_S.tolist() == [5, 3, 2, 2]
    assert computed_S.tolist() == [4, 2, 1, 1]  # one less than tokens: the last is not computed
    assert [
        tokens_L[:count] for tokens_L, count in zip(tokens_SL.tolist(), (5, 3, 2, 2), strict=True)
    ] == [[1, 5, 6, 7, 8], [1, 5, 9], [1, 4], [1, 3]]


def test_rows_behind_a_chunk_or_without_a_token_yield_as_those_of_a_decode_step() -> None:
    # Slot 0: a chunk of 3 with no sample; slot 1: two tokens and a draft; slot 2: nothing to run.
    tokens_SL = ints(1, 1, 1, 4, 0, 0).repeat(3, 1)
    num_tokens_S, computed_S = ints(6, 3, 3), ints(0, 1, 3)
    drafts = yields([0, 2, 3], 2)
    accept_(
        *(ints(0, 1), ints(0, 3, 6), computed_S, ints(1, 2), ints(4, 9, 8)),
        *(num_tokens_S, tokens_SL),
        drafts=drafts,
    )
    assert drafts.counts_N.tolist() == [2, 1]
    assert num_tokens_S.tolist() == [6, 5, 4]
    assert computed_S.tolist() == [3, 4, 3]


def test_no_draft_counts_that_has_no_place_and_padding_yields_nothing() -> None:
    tokens_SL = ints(1, 1, 1, 4).repeat(3, 1)
    num_tokens_S, computed_S = ints(3, 4, 1), ints(2, 3, 0)
    drafts = yields([0, 2, 4, 6, 6], 2)
    slots_N = ints(0, 1, 2, 1)
    accept_(
        *(ints(0, 1, 2), ints(0, 2, 4, 6), computed_S, slots_N, ints(4, 9, 4, 9, 1, 9)),
        *(num_tokens_S, tokens_SL),
        drafts=drafts,
        padding_slot=2,
    )
    assert drafts.counts_N.tolist() == [1, 1, 0, 0]
    assert drafts.tokens_NK.tolist() == [[4, -1], [4, -1], [-1, -1], [-1, -1]]
    assert num_tokens_S.tolist() == [4, 4, 1]
    assert computed_S.tolist() == [3, 3, 0]
    assert tokens_SL[2].tolist() == [1, 1, 1, 4]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("has_drafts", [False, True])
def test_a_row_that_runs_on_past_its_end_stays_there(device: str, has_drafts: bool) -> None:
    tokens_SL = torch.zeros(2, 9, dtype=torch.int32, device=device)
    num_tokens_S, computed_S = ints(3, 3).to(device), ints(2, 2).to(device)
    max_len_S, slots_N = ints(4, 9).to(device), ints(0, 1).to(device)
    drafts = DraftRows.empty(ints(0, 1, 2).to(device), 1) if has_drafts else None
    for token in (5, 6, 7):
        sampled_T = ints(token, token).to(device)
        accept_(
            *(slots_N, ints(0, 1, 2).to(device), computed_S, slots_N, sampled_T),
            *(num_tokens_S, tokens_SL),
            max_len_S=max_len_S,
            drafts=drafts,
        )
    assert num_tokens_S.tolist() == [4, 6]
    assert computed_S.tolist() == [3, 5]  # the last token's keys would have no place
    assert tokens_SL.tolist() == [[0, 0, 0, 7, 0, 0, 0, 0, 0], [0, 0, 0, 5, 6, 7, 0, 0, 0]]


def random_step(rows: int, longest: int, tables: int, rng: np.random.Generator) -> list[Tensor]:
    """Slots, query starts, computed, tokens, then block tables."""
    slots, length, width = rows + 5, 300, 19
    lens = rng.integers(0, longest + 1, rows)
    starts = np.concatenate(([0], np.cumsum(lens)))
    arrays = [
        rng.permutation(slots)[:rows],
        starts,
        rng.integers(0, length - longest, slots),
        rng.integers(0, 1000, (slots, length)),
        *(rng.integers(0, 5000, (slots, width)) for _ in range(tables)),
    ]
    return [torch.from_numpy(array.astype(np.int32)) for array in arrays]


@pytest.mark.gpu
def test_inputs_on_the_device_equal_the_reference() -> None:
    rng = np.random.default_rng(0)
    for rows, longest, tables, padding in [
        *[(1, 1, 1, 0), (1, 200, 1, 0), (256, 1, 1, 7), (129, 9, 2, 3)],
        *[(1000, 5, 8, 0), (3, 0, 1, 4), (12287, 1, 0, 0)],
    ]:
        step = random_step(rows, longest, tables, rng)
        num_tokens = int(step[1][-1]) + padding
        expected = reference.step_inputs(*step[:4], step[4:], num_tokens, 16)
        out = StepInputs.empty(num_tokens, rows, tables, torch.device("cuda"))
        for tensor in (out.ids_T, out.positions_T, out.rows_T, out.context_lens_R):
            tensor.fill_(-7)
        on_device = [tensor.cuda() for tensor in step]
        found = step_inputs(
            *on_device[:4], on_device[4:], num_tokens=num_tokens, block_tokens=16, out=out
        )
        assert found is out
        assert torch.equal(found.ids_T.cpu(), expected[0])
        assert torch.equal(found.positions_T.cpu(), expected[1])
        assert torch.equal(found.rows_T.cpu(), expected[2])
        assert torch.equal(found.context_lens_R.cpu(), expected[3])
        for slots_T, expected_T in zip(found.cache_slots, expected[4], strict=True):
            assert torch.equal(slots_T.cpu(), expected_T)


@pytest.mark.gpu
def test_changes_of_the_state_on_the_device_equal_the_reference() -> None:
    rng = np.random.default_rng(1)
    for rows, drawn in [(1, 1), (257, 100), (5, 0), (3, 300)]:
        slots_R, starts_R1, computed_S, tokens_SL = random_step(max(rows, drawn), 3, 0, rng)
        slots_D, tokens_D = slots_R.flip(0)[:drawn].contiguous(), torch.arange(drawn).int()
        num_tokens_S = computed_S + 1
        step = (
            *(slots_R[:rows], starts_R1[: rows + 1], computed_S),
            *(slots_D, tokens_D, num_tokens_S, tokens_SL),
        )
        on_device = [tensor.cuda() for tensor in step]
        reference.accept_(*step, None, None, padding_slot=int(slots_R[0]))
        accept_(*on_device, padding_slot=int(slots_R[0]))
        for found, expected in zip(on_device, step, strict=True):
            assert torch.equal(found.cpu(), expected)
        indices = torch.from_numpy(rng.permutation(tokens_SL.numel())[:rows].astype(np.int32))
        indices[0] = -1
        expected = tokens_SL.flatten()
        reference.scatter_words_(expected, indices, slots_R[:rows])
        values = slots_R[:rows].contiguous()
        for place in (torch.Tensor.cuda, torch.Tensor.pin_memory):  # a kernel reads either
            found = on_device[6].flatten().clone()
            scatter_words_(found, place(indices), place(values))
            assert torch.equal(found.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "longest"), [(1, 1), (1, 200), (257, 4), (64, 40), (1000, 17)])
def test_drafts_on_the_device_count_as_in_the_reference(rows: int, longest: int) -> None:
    rng = np.random.default_rng(rows)
    slots_R, starts_R1, computed_S, tokens_SL = random_step(rows, longest, 0, rng)
    num_tokens_S = computed_S + 1
    sampled = rng.integers(0, 1000, int(starts_R1[-1])).astype(np.int32)
    for row, slot in enumerate(slots_R.tolist()):  # as many drafts are right as chance has it
        begin, end = starts_R1[row : row + 2].tolist()
        right, first = int(rng.integers(0, longest + 2)), int(num_tokens_S[slot])
        drafts_L = tokens_SL[slot, first : first + min(right, end - begin)]
        sampled[begin : begin + len(drafts_L)] = drafts_L
    state = [computed_S, slots_R, torch.from_numpy(sampled), num_tokens_S, tokens_SL]
    max_len_S = torch.from_numpy(rng.integers(1, 320, len(computed_S)).astype(np.int32))
    for most in (longest, max(longest // 2, 1)):
        expected = yields(starts_R1.tolist(), most)
        on_device = [tensor.cuda() for tensor in (slots_R, starts_R1, *state)]
        found = DraftRows.empty(on_device[1], most)
        given = {"max_len_S": max_len_S.cuda(), "drafts": found}
        accept_(*on_device, **given, padding_slot=int(slots_R[0]))
        step = [tensor.clone() for tensor in (slots_R, starts_R1, *state)]
        reference.accept_(*step, max_len_S, expected, padding_slot=int(slots_R[0]))
        for there, here in zip(on_device, step, strict=True):
            assert torch.equal(there.cpu(), here)
        assert torch.equal(found.tokens_NK.cpu(), expected.tokens_NK)
        assert torch.equal(found.counts_N.cpu(), expected.counts_N)


@pytest.mark.gpu
def test_a_padding_slot_in_many_rows_is_safe_on_the_device() -> None:
    slots_R = torch.zeros(500, dtype=torch.int32, device="cuda")
    starts_R1 = torch.arange(501, dtype=torch.int32, device="cuda")
    state = torch.zeros(3, 8, dtype=torch.int32, device="cuda")  # computed, num_tokens, tokens
    for _ in range(20):
        accept_(*(slots_R, starts_R1, state[0, :1], slots_R, slots_R, state[1, :1], state[2:, :4]))
    assert int(state[0, 0]) <= 4
    assert int(state[1, 0]) <= 4
    assert not state[:, 4:].any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_padding_slot_stays_as_it_is_however_many_rows_it_has(device) -> None:
    computed_S, num_tokens_S = ints(5, 0).to(device), ints(6, 1).to(device)
    tokens_SL = torch.zeros(2, 8, dtype=torch.int32, device=device)
    slots_R = ints(0, 1, 1).to(device)
    starts_R1, drawn_D = ints(0, 1, 2, 3).to(device), ints(7, 8, 9).to(device)
    state = (computed_S, slots_R, drawn_D, num_tokens_S, tokens_SL)
    accept_(slots_R, starts_R1, *state, padding_slot=1)
    assert computed_S.tolist() == [6, 0]
    assert num_tokens_S.tolist() == [7, 1]
    assert tokens_SL.tolist() == [[0] * 6 + [7, 0], [0] * 8]
