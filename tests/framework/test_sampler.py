from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.sampling.forward import Sampled
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.sparse import SparseParameters, table_bytes
from octavo.steps.plan import Attached, TokenMasks
from sampling_reference import (
    Bench,
    Row,
    any_row,
    expected_token,
    make_plan,
    params,
)

VOCAB = 300


def normal_logits(rows: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, VOCAB, generator=generator) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_mix_of_rows_gives_the_tokens_of_the_plain_reference(dtype: torch.dtype) -> None:
    rng = random.Random(3)
    rows = [any_row(rng, VOCAB) for _ in range(400)]
    logits = normal_logits(len(rows), 3, dtype)
    expected = [
        expected_token(row_V.tolist(), row) for row_V, row in zip(logits, rows, strict=True)
    ]
    assert Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0].tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mixed_batch_equals_each_row_alone_bit_for_bit(dtype: torch.dtype) -> None:
    rng = random.Random(4)
    rows = [any_row(rng, VOCAB) for _ in range(100)]
    logits = normal_logits(len(rows), 4, dtype)
    bench = Bench(rows, VOCAB)
    mixed = bench.sample(logits, num_logprobs=5)
    assert mixed.logprobs is not None
    for slot in range(len(rows)):
        alone = bench.sample(logits[slot : slot + 1], [slot], num_logprobs=5)
        assert alone.logprobs is not None
        assert alone.tokens_RK.item() == mixed.tokens_RK[:, 0][slot].item()
        assert torch.equal(alone.logprobs.token_ids_RK1[0], mixed.logprobs.token_ids_RK1[slot])
        assert torch.equal(alone.logprobs.logprobs_RK1[0], mixed.logprobs.logprobs_RK1[slot])
        assert torch.equal(alone.logprobs.ranks_R[0], mixed.logprobs.ranks_R[slot])


def test_tokens_do_not_depend_on_slots_or_on_the_order_of_rows() -> None:
    rng = random.Random(5)
    rows = [any_row(rng, VOCAB) for _ in range(60)]
    logits = normal_logits(len(rows), 5)
    tokens = Bench(rows, VOCAB).sample(logits.clone()).tokens_RK[:, 0]
    order = rng.sample(range(60), 60)
    moved = Bench([rows[i] for i in order], VOCAB).sample(logits[order])
    assert torch.equal(moved.tokens_RK[:, 0], tokens[order])
    shuffled = Bench(rows, VOCAB).sample(logits[order], order)
    assert torch.equal(shuffled.tokens_RK[:, 0], tokens[order])


def test_rows_worked_on_in_pieces_give_the_same_tokens() -> None:
    rows = [Row(params(seed=i, temperature=1.0, top_p=0.9, min_p=0.01)) for i in range(20)]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 40_000, generator=generator)  # pieces of 6 rows
    bench = Bench(rows, 40_000)
    alone = [bench.sample(logits[i : i + 1].clone(), [i]).tokens_RK.item() for i in range(20)]
    assert bench.sample(logits).tokens_RK[:, 0].tolist() == alone


def test_a_seed_repeats_and_another_seed_or_position_does_not() -> None:
    logits = torch.zeros(3, VOCAB)
    row = Row(params(seed=5, temperature=1.0))
    other = Row(params(seed=6, temperature=1.0))
    later = Row(row.sampling, prompt=(0, 0))
    tokens = Bench([row, other, later], VOCAB).sample(logits).tokens_RK[:, 0].tolist()
    assert Bench([row, other, later], VOCAB).sample(logits).tokens_RK[:, 0].tolist() == tokens
    assert len(set(tokens)) == 3


def test_draws_stay_what_they_were_when_this_was_written() -> None:
    rows = [Row(params(seed=seed, temperature=1.0, top_k=250)) for seed in (0, 1, -1, 2**62)]
    logits = (torch.arange(VOCAB) * 7919 % VOCAB / 60).repeat(4, 1)
    assert Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0].tolist() == [90, 50, 68, 20]


def test_greedy_rows_take_the_first_of_the_best() -> None:
    logits = torch.zeros(2, VOCAB, dtype=torch.bfloat16)
    logits[0, [7, 9]] = 2.0
    logits[1, [3, 200]] = 1.0
    assert Bench([Row(params())] * 2, VOCAB).sample(logits).tokens_RK[:, 0].tolist() == [7, 3]


def test_top_k_keeps_exactly_k_and_the_lower_ids_among_equals() -> None:
    rows = [Row(params(seed=seed, temperature=1.0, top_k=4)) for seed in range(2000)]
    tokens = Bench(rows, VOCAB).sample(torch.zeros(2000, VOCAB)).tokens_RK[:, 0]
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_top_p_keeps_all_that_tie_with_the_last_one() -> None:
    rows = [Row(params(seed=seed, temperature=1.0, top_p=0.5)) for seed in range(4000)]
    logits = torch.full((4000, VOCAB), -20.0)
    logits[:, 10] = 2.0
    logits[:, 20:29] = 0.0  # the first holds 0.45, each of these 0.06
    tokens = Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0]
    assert set(tokens.tolist()) == {10, *range(20, 29)}


def test_top_p_finds_the_last_token_whatever_the_bits_of_its_score() -> None:
    for last in (1.0, 1.0 + 3 * 2.0**-23, 1.0 + 2.0**-13, 1.0 + 1023 * 2.0**-23):
        rows = [Row(params(seed=seed, temperature=1.0, top_p=0.8)) for seed in range(100)]
        logits = torch.full((100, VOCAB), -30.0)
        logits[:, 3] = 0.0
        logits[:, 4] = -last  # 0.71 before it, 0.97 with it
        logits[:, 5] = -3.0
        tokens = Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0]
        assert set(tokens.tolist()) == {3, 4}


def test_a_very_small_top_p_leaves_the_likeliest_token() -> None:
    rows = [Row(params(seed=seed, temperature=2.0, top_p=1e-6)) for seed in range(50)]
    logits = normal_logits(50, 6)
    assert torch.equal(Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0].long(), logits.argmax(1))


def test_the_only_allowed_token_is_always_drawn() -> None:
    rows = [
        Row(params(seed=i, temperature=1.0, allowed_token_ids=(i % VOCAB,))) for i in range(600)
    ]
    tokens = Bench(rows, VOCAB).sample(normal_logits(600, 7)).tokens_RK[:, 0]
    assert tokens.tolist() == [i % VOCAB for i in range(600)]


def test_bits_of_a_mask_ban_tokens_of_their_rows_only() -> None:
    rng = np.random.default_rng(8)
    allowed = rng.random((2, VOCAB)) < 0.1
    padded = np.pad(allowed, ((0, 0), (0, 320 - VOCAB)), constant_values=True)
    words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    masks = TokenMasks(rows_M=np.array([3, 1], np.int32), bits_MW=words)
    of_allowed = np.array([False, True, False, False])
    logits = normal_logits(4, 8)
    bench = Bench([Row(params())] * 4, VOCAB)
    sampled = bench.sample(logits.clone(), masks=masks, of_allowed=of_allowed, num_logprobs=1)
    banned = torch.zeros(4, VOCAB, dtype=torch.bool)
    banned[[3, 1]] = ~torch.tensor(allowed)
    best = logits.masked_fill(banned, -torch.inf).argmax(1)
    assert torch.equal(sampled.tokens_RK[:, 0].long(), best)
    # Of these two rows' logprobs one says how likely the token is among those that are allowed.
    banned[3] = False
    expected = logits.masked_fill(banned, -torch.inf).log_softmax(1).gather(1, best[:, None])
    assert sampled.logprobs is not None
    torch.testing.assert_close(sampled.logprobs.logprobs_RK1[:, :1], expected)


def test_stop_ids_are_banned_until_the_least_length() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [4, 9, 11]] = torch.tensor([3.0, 2.0, 1.0])
    sampling = params(min_tokens=2, stop_token_ids=(4,), eos_token_ids=(9,))
    for output, token in [((), 11), ((0,), 11), ((0, 0), 4)]:
        row = Row(sampling, prompt=(1, 2), output=output)
        assert Bench([row], VOCAB).sample(logits.clone()).tokens_RK.item() == token


def test_penalties_ignore_what_lies_past_a_sequence_in_its_slot() -> None:
    short = Row(params(repetition_penalty=2.0, presence_penalty=1.0), (1,), (2,))
    bench = Bench([short, Row(params(), (1,) * 9)], VOCAB)
    bench.state.tokens_SL[0, 2:] = 7  # of the sequence that had the slot before
    logits = torch.zeros(2, VOCAB)
    logits[:, [7, 8]] = torch.tensor([1.0, 0.9])
    assert bench.sample(logits).tokens_RK[:, 0].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("word", "prompt", "output", "banned"),
    [
        ((7,), (1,), (), True),
        ((5, 7), (1,), (5,), True),
        ((5, 7), (5,), (), True),
        ((5, 7), (5,), (1,), False),
        ((1, 2, 3, 7), (9, 1), (2, 3), True),
        ((1, 2, 3, 7), (9, 2), (2, 3), False),
        ((1, 2, 3, 7), (2,), (3,), False),
        ((7, 8), (7,), (7,), False),
        ((2, 2, 7), (2,), (), False),
    ],
)
def test_a_bad_word_is_banned_where_its_last_token_would_complete_it(
    word: tuple[int, ...], prompt: tuple[int, ...], output: tuple[int, ...], banned: bool
) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1.0
    row = Row(params(bad_word_ids=((250, 251), word)), prompt, output)
    assert (Bench([row], VOCAB).sample(logits).tokens_RK.item() != 7) == banned


def test_a_slots_next_sequence_inherits_no_bias_allowed_tokens_or_bad_words() -> None:
    first = params(
        logit_bias={5: 50.0, 6: 60.0}, allowed_token_ids=(5, 6), bad_word_ids=((6,), (8,))
    )
    second = params(logit_bias={8: 1.0}, bad_word_ids=((9,),))
    bench = Bench([Row(first)], VOCAB)
    assert bench.sample(torch.zeros(1, VOCAB)).tokens_RK.item() == 5
    bench.sampler.begin(make_plan(bench.rows, attach=[Attached(0, second)]))
    assert bench.sample(torch.zeros(1, VOCAB)).tokens_RK.item() == 8


TABLES = ("bias_ids_SN", "biases_SN", "allowed_SW", "bad_words_SNL")


def test_a_recorded_draw_reads_what_is_attached_later() -> None:
    sparse = SparseParameters(Bench([Row(params())] * 2, VOCAB).state, VOCAB, at_start=True)
    recorded = sparse.state  # a recording keeps the addresses of these
    tables = [getattr(recorded, name) for name in TABLES]
    assert sum(table.nbytes for table in tables) == table_bytes(2, VOCAB)
    for sampling in (
        params(),
        params(logit_bias={1: 1.0}),
        params(allowed_token_ids=(1,)),
        params(bad_word_ids=((1,),)),
        params(logit_bias={2: 9.0}, allowed_token_ids=(2,), bad_word_ids=((1, 2),)),
    ):
        sparse.attach(1, sampling)
        assert sparse.state is recorded
    assert tables[1][:, 0].tolist() == [0.0, 9.0, 0.0]
    assert [bin(each) for each in tables[2][1, :2].tolist()] == ["0b100", "0b0"]
    assert tables[3][1, 0, -2:].tolist() == [1, 2]


def test_tables_that_nobody_uses_take_nothing_where_no_step_is_recorded() -> None:
    sparse = SparseParameters(Bench([Row(params())], VOCAB).state, VOCAB, at_start=False)
    sparse.attach(0, params(logit_bias={1: 1.0}))
    made = [getattr(sparse.state, name) is not None for name in TABLES]
    assert made == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_of_the_raw_logits(dtype: torch.dtype) -> None:
    rows = [
        Row(params(logit_bias={17: 90.0})),
        Row(params(temperature=2.0, top_k=3)),
        Row(params()),
    ]
    logits = normal_logits(3, 9, dtype)
    before = logits.clone()
    sampled = Bench(rows, VOCAB).sample(logits, num_logprobs=4)
    assert torch.equal(logits, before)
    assert sampled.logprobs is not None
    assert sampled.tokens_RK[:, 0][0] == 17
    reference = before.double().log_softmax(1)
    ids = sampled.logprobs.token_ids_RK1
    assert torch.equal(ids[:, 0], sampled.tokens_RK[:, 0].long())
    torch.testing.assert_close(
        sampled.logprobs.logprobs_RK1.double(), reference.gather(1, ids), rtol=0, atol=1e-5
    )
    assert torch.equal(
        reference.gather(1, ids[:, 1:]), reference.sort(1, descending=True).values[:, :4]
    )
    chosen = reference.gather(1, sampled.tokens_RK[:, 0][:, None])
    assert torch.equal(sampled.logprobs.ranks_R, (reference > chosen).sum(1) + 1)


def test_equal_logits_are_reported_by_rising_id() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.bfloat16)
    logits[0, [40, 30]] = 1.0
    logits[0, 0] = -0.0
    result = token_logprobs(logits, torch.tensor([30]), 5)
    assert result.token_ids_RK1.tolist() == [[30, 30, 40, 0, 1, 2]]
    assert result.ranks_R.tolist() == [1]


def test_more_log_probabilities_than_tokens_gives_all_tokens() -> None:
    result = token_logprobs(torch.randn(2, 6), torch.tensor([1, 2]), 20)
    assert result.logprobs_RK1.shape == (2, 7)
    torch.testing.assert_close(result.logprobs_RK1[:, 1:].exp().sum(1), torch.ones(2))


def test_no_rows_is_no_tokens() -> None:
    nothing = torch.zeros(0, VOCAB)
    assert Bench([Row(params())], VOCAB).sample(nothing, [], num_logprobs=2) == Sampled()
    logprobs = token_logprobs(nothing, torch.zeros(0, dtype=torch.int32), 2)
    assert logprobs.token_ids_RK1.shape == logprobs.logprobs_RK1.shape == (0, 3)


@pytest.mark.parametrize("broken", [float("nan"), -float("nan"), float("-inf"), float("inf")])
def test_a_row_of_broken_logits_leaves_the_others_alone(broken: float) -> None:
    rng = random.Random(12)
    rows = [any_row(rng, VOCAB) for _ in range(64)]
    logits = normal_logits(64, 12)
    tokens = Bench(rows, VOCAB).sample(logits.clone()).tokens_RK[:, 0]
    logits[::4] = broken
    spoilt = Bench(rows, VOCAB).sample(logits).tokens_RK[:, 0]
    sound = torch.arange(64) % 4 != 0
    assert torch.equal(spoilt[sound], tokens[sound])
    assert ((spoilt >= 0) & (spoilt < VOCAB)).all()


@pytest.mark.gpu
def test_cuda_draws_the_same_tokens_and_never_waits_for_the_device() -> None:
    rng = random.Random(13)
    rows = [any_row(rng, VOCAB) for _ in range(200)]
    logits = normal_logits(200, 13)
    expected = Bench(rows, VOCAB).sample(logits.clone(), num_logprobs=3)
    bench = Bench(rows, VOCAB, device="cuda")
    forward = bench.forward(logits.cuda(), num_logprobs=3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampled = bench.sampler.sample(forward, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(sampled.tokens_RK[:, 0].cpu(), expected.tokens_RK[:, 0])
