from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels.row_features import ALL_WORK, EDITS, THRESHOLDS, RowFeature, Work, work_of
from octavo_kernels.sample import SamplingState, processed, sample

F = RowFeature
MAX_LEN, NUM_BIASES, NUM_WORDS, WORD_LEN = 200, 40, 8, 5


def random_state(num_slots: int, vocab: int, features: int, seed: int) -> SamplingState:
    """Slots with any of the given features, each in half of them."""
    rng = np.random.default_rng(seed)

    def ints(low: int, high: int, *shape: int) -> Tensor:
        return torch.tensor(rng.integers(low, high, (num_slots, *shape)), dtype=torch.int32)

    def floats(low: float, high: float) -> Tensor:
        return torch.tensor(rng.uniform(low, high, num_slots), dtype=torch.float32)

    features_S = ints(0, 256) & features
    features_S = torch.where(
        features_S & F.RANDOM != 0, features_S, features_S & ~int(THRESHOLDS)
    ).int()
    num_tokens_S = ints(1, MAX_LEN)
    tokens_SL = ints(0, min(vocab, 300), MAX_LEN)
    tokens_SL[torch.arange(MAX_LEN) >= num_tokens_S[:, None]] = 10**6  # never to be read
    bad_words_SNL = ints(0, vocab, NUM_WORDS, WORD_LEN)
    for slot, num_tokens in enumerate(num_tokens_S.tolist()):
        for word_L in bad_words_SNL[slot]:
            length = int(rng.integers(1, WORD_LEN))
            word_L[:-length] = -1
            if length <= num_tokens and rng.random() < 0.7:  # one that is about to be complete
                word_L[-length:-1] = tokens_SL[slot, num_tokens - length + 1 : num_tokens]
    num_biases = min(NUM_BIASES, vocab)
    bias_ids = np.array([rng.choice(vocab, num_biases, replace=False) for _ in range(num_slots)])
    biases_SN = torch.tensor(rng.normal(0, 3, bias_ids.shape), dtype=torch.float32)
    return SamplingState(
        tokens_SL=tokens_SL,
        num_tokens_S=num_tokens_S,
        prompt_len_S=torch.minimum(ints(1, MAX_LEN), num_tokens_S),
        features_S=features_S,
        temperature_S=floats(0.2, 2.0),
        top_p_S=floats(0.05, 0.99).masked_fill(features_S & F.TOP_P == 0, 1.0),
        min_p_S=floats(0.001, 0.4).masked_fill(features_S & F.MIN_P == 0, 0.0),
        presence_S=floats(-1, 2),
        frequency_S=floats(-1, 1),
        repetition_S=floats(0.6, 1.8),
        top_k_S=torch.tensor(rng.choice([1, 4, 50, 2000, 10**6], num_slots), dtype=torch.int32),
        seed_S2=ints(-(2**31), 2**31, 2),
        min_len_S=ints(1, MAX_LEN),
        stop_ids_SK=ints(-1, vocab, 12),
        bias_ids_SN=torch.tensor(bias_ids, dtype=torch.int32),
        biases_SN=biases_SN * (torch.rand(biases_SN.shape) < 0.8),
        allowed_SW=ints(-(2**31), 2**31, -(-vocab // 32)),
        bad_words_SNL=bad_words_SNL,
    )


def on_cuda(state: SamplingState) -> SamplingState:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return SamplingState(**{k: v if v is None else v.cuda() for k, v in values.items()})


def random_logits(
    rows: int, vocab: int, dtype: torch.dtype, seed: int, spread: float = 3.0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab, generator=generator) * spread).to(dtype)


def with_drafts(state: SamplingState, vocab: int, most: int, seed: int) -> SamplingState:
    """The same with drafts behind each slot's tokens, some of no token at all."""
    rng = np.random.default_rng(seed)
    tokens_SL = state.tokens_SL.clone()
    for slot, first in enumerate(state.num_tokens_S.tolist()):
        drafts_L = tokens_SL[slot, first : first + most]
        drafts_L.copy_(torch.from_numpy(rng.integers(0, min(vocab, 300), len(drafts_L))))
        if rng.random() < 0.3 and len(drafts_L):
            drafts_L[rng.integers(len(drafts_L))] = int(
                rng.choice([-1, vocab, 2**31 - 1, -(2**31)])
            )
    return replace(state, tokens_SL=tokens_SL)


def slots_of(rows: int) -> Tensor:
    return torch.arange(rows, dtype=torch.int32)


def sample_on_cuda(logits_RV: Tensor, slots_R: Tensor, state: SamplingState, **given) -> Tensor:
    """What the kernel writes into a poisoned buffer."""
    tokens_R = torch.full(slots_R.shape, -7, dtype=torch.int32, device="cuda")
    sample(logits_RV.cuda(), slots_R.cuda(), state, tokens_R=tokens_R, **given)
    return tokens_R.cpu()


def test_the_logits_stay_as_they_are_and_tokens_go_where_they_are_wanted() -> None:
    state = random_state(40, 500, 255, seed=1)
    logits = random_logits(40, 500, torch.float32, seed=1)
    before, tokens_R = logits.clone(), torch.full((40,), -7, dtype=torch.int32)
    result = sample(logits, slots_of(40), state, tokens_R=tokens_R)
    assert result is tokens_R
    assert ((tokens_R >= 0) & (tokens_R < 500)).all()
    assert torch.equal(logits, before)


def test_no_rows_is_no_tokens() -> None:
    state = random_state(1, 50, 255, seed=1)
    assert sample(torch.zeros(0, 50), slots_of(0), state).shape == (0,)


def test_a_row_behind_drafts_is_as_one_of_a_slot_that_has_these_tokens() -> None:
    slots, most, vocab = 60, 5, 500
    state = with_drafts(random_state(slots, vocab, 255, seed=9), vocab, most, seed=9)
    slots_R = slots_of(slots).repeat_interleave(most + 1)
    ahead_R = slots_of(most + 1).repeat(slots)
    logits = random_logits(len(slots_R), vocab, torch.float32, seed=9)
    tokens_R = sample(logits, slots_R, state, ahead_R=ahead_R)
    scores_RV = processed(logits, slots_R, state, ahead_R, None, None)
    changed = 0
    for ahead in range(most + 1):
        lens_S = (state.num_tokens_S + ahead).clamp_(max=MAX_LEN)
        longer = replace(state, num_tokens_S=lens_S)
        rows = ahead_R == ahead
        assert torch.equal(tokens_R[rows], sample(logits[rows], slots_of(slots), longer))
        alone = processed(logits[rows], slots_of(slots), longer, None, None, None)
        assert torch.equal(scores_RV[rows], alone)
        changed += int((tokens_R[rows] != sample(logits[rows], slots_of(slots), state)).sum())
    assert changed > 20  # what stands before a row matters


@pytest.mark.parametrize(
    ("features", "work"),
    [
        ([], Work(0)),
        ([F(0), F(0)], Work(0)),
        ([F.RANDOM], Work.FEATURES),
        ([F.PENALTY, F.RANDOM | F.TOP_K], Work.FEATURES | Work.THRESHOLD_ROWS),
        ([F(0), F.RANDOM | F.TOP_P | F.BIAS], ALL_WORK),
    ],
)
def test_work_is_what_some_row_needs(features: list[RowFeature], work: Work) -> None:
    assert work_of(np.array(features, np.int32)) == work


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logits_RV": torch.zeros(2, 64, dtype=torch.float64)}, "logits are torch.float64"),
        ({"logits_RV": torch.zeros(64, 2).T}, r"of strides \(1, 2\)"),
        ({"slots_R": torch.zeros(2, dtype=torch.int64)}, "slots is torch.int64"),
        ({"slots_R": slots_of(3)}, r"slots is torch.int32 \[3\]"),
        ({"tokens_R": torch.zeros(2)}, "tokens is torch.float32"),
        ({"ahead_R": slots_of(3)}, r"ahead is torch.int32 \[3\]"),
        ({"mask_rows_R": slots_of(2)}, "come together"),
        (
            {"mask_rows_R": slots_of(2), "mask_MW": torch.zeros(2, 1, dtype=torch.int32)},
            "a bit for each of 64 ids",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changed, message: str) -> None:
    state = random_state(2, 64, 0, seed=1)
    given = {"logits_RV": torch.zeros(2, 64), "slots_R": slots_of(2), "state": state} | changed
    with pytest.raises(ValueError, match=message):
        sample(**given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocab", [1, 7, 512, 32000, 50257, 128256, 151936])
def test_greedy_rows_on_cuda_take_the_first_of_the_best(vocab: int, dtype: torch.dtype) -> None:
    for rows in (1, 3, 40):
        state = on_cuda(random_state(rows, vocab, 0, seed=vocab))
        logits = random_logits(rows, vocab, dtype, seed=rows).round()  # many ties
        expected = logits.float().argmax(dim=1).int()
        assert torch.equal(sample_on_cuda(logits, slots_of(rows), state), expected)
        assert torch.equal(sample_on_cuda(logits, slots_of(rows), state, work=Work(0)), expected)


MIXES = {
    "plain draws": F.RANDOM,
    "edits": EDITS,
    "edits and draws": EDITS | F.RANDOM,
    "top_k": F.RANDOM | F.TOP_K,
    "top_p": F.RANDOM | F.TOP_P,
    "min_p": F.RANDOM | F.MIN_P,
    "thresholds": F.RANDOM | THRESHOLDS,
    "all": F(255),
}


@pytest.mark.gpu
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize(
    ("rows", "vocab", "dtype", "spread"),
    [
        (300, 511, torch.float32, 3.0),
        (64, 5000, torch.bfloat16, 0.3),
        (24, 50257, torch.float16, 2.0),
        (16, 128256, torch.bfloat16, 3.0),
        (6, 151936, torch.float32, 1.0),
    ],
)
def test_any_mix_of_rows_on_cuda_gives_the_tokens_of_the_reference(
    rows: int, vocab: int, dtype: torch.dtype, spread: float, mix: RowFeature
) -> None:
    state = random_state(rows, vocab, int(mix), seed=rows)
    logits = random_logits(rows, vocab, dtype, seed=int(mix), spread=spread)
    expected = sample(logits, slots_of(rows), state)
    tokens = sample_on_cuda(logits, slots_of(rows), on_cuda(state))
    wrong = (tokens != expected).nonzero()[:, 0].tolist()
    features = [RowFeature(int(state.features_S[row])) for row in wrong]
    assert not wrong, (wrong, features, tokens[wrong], expected[wrong])


@pytest.mark.gpu
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize(("slots", "vocab", "most"), [(60, 511, 4), (5, 50257, 16), (40, 5000, 1)])
def test_rows_behind_drafts_on_cuda_give_the_tokens_of_the_reference(
    slots: int, vocab: int, most: int, mix: RowFeature
) -> None:
    state = with_drafts(random_state(slots, vocab, int(mix), seed=slots), vocab, most, seed=slots)
    slots_R = slots_of(slots).repeat_interleave(most + 1)
    ahead_R = slots_of(most + 1).repeat(slots)
    logits = random_logits(len(slots_R), vocab, torch.bfloat16, seed=int(mix))
    expected = sample(logits, slots_R, state, ahead_R=ahead_R)
    tokens = sample_on_cuda(logits, slots_R, on_cuda(state), ahead_R=ahead_R.cuda())
    assert torch.equal(tokens, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [3001, 128256])
def test_a_mixed_batch_on_cuda_equals_each_row_alone_and_any_order(vocab: int) -> None:
    rows = 64
    state = on_cuda(random_state(rows, vocab, 255, seed=2))
    logits = random_logits(rows, vocab, torch.bfloat16, seed=2)
    mixed = sample_on_cuda(logits, slots_of(rows), state)
    alone = [sample_on_cuda(logits[r : r + 1], slots_of(rows)[r : r + 1], state) for r in range(64)]
    assert torch.equal(torch.cat(alone), mixed)
    order = torch.randperm(rows)
    assert torch.equal(sample_on_cuda(logits[order], order.int(), state), mixed[order])
    many = order.repeat(10)  # so many rows that none is divided
    assert torch.equal(sample_on_cuda(logits[many], many.int(), state), mixed[many])


@pytest.mark.gpu
@pytest.mark.parametrize("level", [0.0, -30.0])
def test_thresholds_on_cuda_hold_where_all_or_most_tokens_tie(level: float) -> None:
    rows, vocab = 40, 128256
    state = random_state(rows, vocab, int(F.RANDOM | THRESHOLDS), seed=3)
    logits = torch.full((rows, vocab), level, dtype=torch.bfloat16)
    logits[:, 77:5000] = 0.0
    expected = sample(logits, slots_of(rows), state)
    assert torch.equal(sample_on_cuda(logits, slots_of(rows), on_cuda(state)), expected)


@pytest.mark.gpu
def test_masks_and_rows_of_a_wider_matrix_on_cuda() -> None:
    rows, vocab = 50, 3331
    state = random_state(rows, vocab, 255, seed=4)
    wide = random_logits(rows, vocab + 10, torch.bfloat16, seed=4)
    mask_MW = torch.randint(-(2**31), 2**31, (7, 105), dtype=torch.int32)
    given = {"mask_rows_R": torch.randint(-1, 7, (rows,), dtype=torch.int32), "mask_MW": mask_MW}
    expected = sample(wide[:, 3 : 3 + vocab], slots_of(rows), state, **given)
    tokens_R = torch.full((rows,), -7, dtype=torch.int32, device="cuda")
    given = {name: tensor.cuda() for name, tensor in given.items()}
    view = wide.cuda()[:, 3 : 3 + vocab]
    sample(view, slots_of(rows).cuda(), on_cuda(state), tokens_R=tokens_R, **given)
    assert torch.equal(tokens_R.cpu(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("broken", [float("nan"), -float("nan"), float("-inf"), float("inf")])
def test_a_row_of_broken_logits_on_cuda_leaves_the_others_alone(broken: float) -> None:
    rows, vocab = 64, 5000
    state = on_cuda(random_state(rows, vocab, 255, seed=5))
    logits = random_logits(rows, vocab, torch.bfloat16, seed=5)
    tokens = sample_on_cuda(logits, slots_of(rows), state)
    logits[::4] = broken
    spoilt = sample_on_cuda(logits, slots_of(rows), state)
    sound = torch.arange(rows) % 4 != 0
    assert torch.equal(spoilt[sound], tokens[sound])
    assert ((spoilt >= 0) & (spoilt < vocab)).all()


@pytest.mark.gpu
def test_a_recorded_draw_reads_what_the_state_says_at_its_replay() -> None:
    rows, vocab = 32, 32000
    first, second = (random_state(rows, vocab, 255, seed=seed) for seed in (6, 7))
    logits, slots_R = random_logits(rows, vocab, torch.bfloat16, seed=6), slots_of(rows)
    state, logits_RV, slots_on_cuda = on_cuda(first), logits.cuda(), slots_R.cuda()
    sample(logits_RV, slots_on_cuda, state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens_R = sample(logits_RV, slots_on_cuda, state)
    for expected_state in (first, second):
        for field in fields(state):
            getattr(state, field.name).copy_(getattr(expected_state, field.name))
        tokens_R.fill_(-7)
        graph.replay()
        assert torch.equal(tokens_R.cpu(), sample(logits, slots_R, expected_state))


@pytest.mark.gpu
def test_a_state_without_tables_and_less_work_give_the_same_tokens() -> None:
    rows, vocab = 48, 9000
    state = random_state(rows, vocab, int(F.RANDOM | F.PENALTY | F.MIN_TOKENS), seed=8)
    state = replace(state, bias_ids_SN=None, biases_SN=None, allowed_SW=None, bad_words_SNL=None)
    logits = random_logits(rows, vocab, torch.bfloat16, seed=8)
    expected = sample(logits, slots_of(rows), state)
    for work in (Work.FEATURES, ALL_WORK):
        tokens = sample_on_cuda(logits, slots_of(rows), on_cuda(state), work=work)
        assert torch.equal(tokens, expected)
