"""Rows with drafts: one step gives what steps of one token give, bit for bit, as far as they count.

Each row's logits by place are given, so that a step of one token and one of several see the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from byte_automata import random_automaton, random_vocabulary
from octavo.guided import sequence
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.sampling import sampler
from octavo.sampling.forward import Forward, Sampled
from octavo.steps import sharing
from octavo.steps.plan import TokenMasks
from octavo.steps.sharing import SharedTokens, share_out
from octavo_kernels.sample import reference as sample_reference
from octavo_kernels.step_state import reference as state_reference
from octavo_registry.guided import GuideState
from sampling_reference import Bench, Row, any_row, make_plan

VOCAB, MOST = 200, 5
"""Of tokens that a row yields, the last."""
FIELDS = ("num_tokens", "computed", "automaton_state", "automaton_depth")
NUM_LOGPROBS = 2


@dataclass
class Case:
    """Rows of a kind, their logits at each place, and what they sample one token a step."""

    rows: list[Row]
    logits: list[Tensor]
    """By place."""
    guides: list[GuideState | None]
    """What the host masks rows by."""
    mode: str
    steps: list[Sampled]
    tokens: NDArray[np.int32]
    """By row and place."""
    states: list[dict[str, Tensor]]
    """What slots have behind so many tokens."""
    ends: list[int]
    """Tokens behind which the host ends a row: its guide is at its end, or takes no token."""


def make_case(kind: str, seed: int, num_rows: int = 40) -> Case:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    rows = [any_row(rng, VOCAB) for _ in range(num_rows)]
    guides: list[GuideState | None] = [None] * num_rows
    if kind != "free":
        vocabulary = replace(random_vocabulary(numbers, VOCAB), vocab_size=VOCAB)
        for row in range(0, num_rows, 3 if kind == "host" else 2):
            guide = ByteAutomatonGuide(random_automaton(numbers, 12, 9), vocabulary)
            if kind == "host":
                guides[row] = guide.start()
            else:
                rows[row] = replace(rows[row], automaton=guide)
    mode = rng.choice(["raw_logprobs", "processed_logprobs", "raw_logits"])
    torch.manual_seed(seed)
    logits = [torch.randn(num_rows, VOCAB) * 3 for _ in range(MOST)]
    case = Case(rows, logits, guides, mode, [], np.zeros((num_rows, MOST), np.int32), [], [])
    case.ends += [MOST] * num_rows
    step_by_step(case)
    return case


def bench_of(case: Case, device: str = "cpu") -> Bench:
    return Bench(case.rows, VOCAB, device, logprobs_mode=case.mode, room=MOST + 2)


def of_allowed(case: Case) -> NDArray[np.bool_]:
    """Each second row that is guided in any way."""
    on_host = np.array([guide is not None for guide in case.guides])
    on_device = np.array([row.automaton is not None for row in case.rows])
    return (on_host | on_device) & (np.arange(len(case.rows)) % 4 == 0)


def masks_of(case: Case, masks_NW: NDArray[np.int32], rows: list[int]) -> TokenMasks | None:
    """The masks of these rows of logits."""
    return TokenMasks(rows_M=np.array(rows, np.int32), bits_MW=masks_NW) if rows else None


def step_by_step(case: Case) -> None:
    bench, num_words = bench_of(case), -(-VOCAB // 32)
    states = [None if guide is None else guide.fork() for guide in case.guides]
    guided = [row for row, state in enumerate(states) if state is not None]
    for place, logits_NV in enumerate(case.logits):
        masks_NW = np.zeros((len(guided), num_words), np.int32)
        for mask_W, row in zip(masks_NW, guided, strict=True):
            states[row].fill_bitmask(mask_W)
        forward = bench.forward(logits_NV, None, NUM_LOGPROBS, of_allowed(case))
        sampled = bench.sampler.sample(forward, masks_of(case, masks_NW, guided))
        case.tokens[:, place] = sampled.tokens_RK[:, 0].numpy()
        case.steps.append(sampled)
        case.states.append(seen(bench))
        for row in guided:
            went_on = states[row].accept(int(case.tokens[row, place]))
            if not went_on or states[row].is_finished():
                case.ends[row] = min(case.ends[row], place + 1)


def seen(bench: Bench) -> dict[str, Tensor]:
    state = bench.device_state
    return {name: state[name].clone() for name in (*FIELDS, "tokens", "automaton_stack")}


def drafts_for(case: Case, seed: int) -> NDArray[np.int32]:
    """Right ones to some length, and behind these wrong ones, some of no token."""
    rng = np.random.default_rng(seed)
    drafts = case.tokens[:, :-1].copy()
    for row_K in drafts:
        right = int(rng.integers(0, MOST + 1))
        wrong = rng.integers(0, VOCAB, len(row_K[right:]))
        hostile = rng.choice([-1, VOCAB, 2**31 - 1, -(2**31)], len(wrong))
        row_K[right:] = np.where(rng.random(len(wrong)) < 0.3, hostile, wrong)
    return drafts


def at_once(
    case: Case, drafts: NDArray[np.int32], lens: list[int], num_tokens: int, device: str = "cpu"
) -> tuple[Bench, SharedTokens, Sampled]:
    """The step of several tokens."""
    bench = bench_of(case, device)
    state, num_rows = bench.device_state, len(case.rows)
    for slot, row in enumerate(case.rows):
        first = len(row.tokens)
        state["tokens"][slot, first : first + MOST - 1] = torch.from_numpy(drafts[slot])
    state["num_drafts"][:num_rows] = torch.tensor(lens, dtype=torch.int32)
    slots_R = torch.arange(num_rows, dtype=torch.int32, device=device)
    shared = share_out(state, slots_R, num_tokens=num_tokens, most_yield=MOST, vocab_size=VOCAB)
    by_place = torch.stack([*case.logits, *[torch.zeros_like(case.logits[0])] * num_tokens]).to(
        device
    )
    is_row_T = shared.slots_T < num_rows
    rows_T = torch.where(is_row_T, shared.slots_T, 0).long()
    plan = make_plan(case.rows, num_logprobs=NUM_LOGPROBS, of_allowed=of_allowed(case))
    plan.num_tokens, plan.most_yield = num_tokens, MOST
    forward = Forward(
        plan=plan,
        hidden_RD=by_place[shared.ahead_T.long(), rows_T],
        slots_R=shared.slots_R,
        query_starts_R1=shared.starts_R1,
        sample_slots_R=shared.slots_R,
        prompt_targets=shared.slots_R[:0],
        spans=None,
        shared=shared,
    )
    sampled = bench.sampler.sample(forward, host_masks(case, bench, shared))
    return bench, shared, sampled


def host_masks(case: Case, bench: Bench, shared: SharedTokens) -> TokenMasks | None:
    """Guides on the host fork, and walk over the drafts of their rows."""
    starts, tokens_SL = shared.starts_R1.tolist(), bench.device_state["tokens"]
    rows, masks = [], []
    for row, guide in enumerate(case.guides):
        if guide is not None:
            first, count = len(case.rows[row].tokens), starts[row + 1] - starts[row]
            masks_KW = np.full((count, -(-VOCAB // 32)), -1, np.int32)
            drafts = tokens_SL[row, first : first + count - 1].tolist()
            sequence.fill_masks(guide, drafts, masks_KW)
            rows += range(starts[row], starts[row + 1])
            masks.append(masks_KW)
    return masks_of(case, np.concatenate(masks), rows) if rows else None


def given(case: Case, seed: int) -> tuple[NDArray[np.int32], list[int], int]:
    """Drafts, how many of them each row has, and the tokens that all rows want."""
    rng = random.Random(seed)
    lens = [rng.choice([0, 1, 3, MOST - 1, MOST + 4]) for _ in case.rows]
    return drafts_for(case, seed), lens, sum(1 + min(count, MOST - 1) for count in lens)


def check(kind: str, seed: int, spare: int = 3) -> int:
    """Compare; returns how many drafts counted. ``spare`` is what is left over or lacks."""
    case = make_case(kind, seed)
    drafts, lens, wanted = given(case, seed)
    bench, shared, sampled = at_once(case, drafts, lens, wanted + spare)
    starts, found = shared.starts_R1.tolist(), seen(bench)
    drafts = np.clip(drafts, 0, VOCAB - 1)  # as the device takes them
    assert sampled.tokens_RK.shape == (len(case.rows), MOST)
    num_right = 0
    for row, tokens in enumerate(case.tokens.tolist()):
        room = starts[row + 1] - starts[row]
        count = 1
        while count < room and drafts[row, count - 1] == tokens[count - 1]:
            count += 1
        num_right += count - 1
        for place in range(min(count, case.ends[row])):
            assert sampled.tokens_RK[row, place] == tokens[place]
            check_logprobs(case, sampled, row, place)
        if count > case.ends[row]:
            assert sampled.counts_R[row] >= case.ends[row]
            continue
        assert sampled.counts_R[row] == count
        assert sampled.tokens_RK[row, count:].tolist() == [-1] * (MOST - count)
        expected = case.states[count - 1]
        for name in FIELDS:
            assert found[name][row] == expected[name][row], name
        length, depth = int(found["num_tokens"][row]), int(found["automaton_depth"][row])
        assert torch.equal(found["tokens"][row, :length], expected["tokens"][row, :length])
        stack = found["automaton_stack"][row, :depth]
        assert torch.equal(stack, expected["automaton_stack"][row, :depth])
    return num_right


def check_logprobs(case: Case, sampled: Sampled, row: int, place: int) -> None:
    found, expected = sampled.logprobs, case.steps[place].logprobs
    assert found is not None
    assert expected is not None
    line = row * MOST + place
    assert torch.equal(found.token_ids_RK1[line], expected.token_ids_RK1[row])
    bits, expected_bits = (
        each.view(torch.int32) for each in (found.logprobs_RK1[line], expected.logprobs_RK1[row])
    )
    assert torch.equal(bits, expected_bits)  # NaN where nothing may come
    assert found.ranks_R[line] == expected.ranks_R[row]


KINDS = ("free", "device", "host")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spare", [0, 7, -9])
def test_a_step_of_several_tokens_gives_those_of_steps_of_one(kind: str, spare: int) -> None:
    assert sum(check(kind, seed, spare) for seed in range(4)) > 60


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_device_takes_the_same_of_a_step_of_several_tokens(kind: str) -> None:
    for seed in range(3):
        case = make_case(kind, seed)
        drafts, lens, wanted = given(case, seed)
        bench, _, expected = at_once(case, drafts, lens, wanted + 3)
        there, _, found = at_once(case, drafts, lens, wanted + 3, "cuda")
        sound = [row for row in range(len(case.rows)) if has_choice(case, row)]
        assert len(sound) > len(case.rows) // 3
        assert torch.equal(found.counts_R.cpu()[sound], expected.counts_R[sound])
        assert torch.equal(found.tokens_RK.cpu()[sound], expected.tokens_RK[sound])
        for name in FIELDS:
            assert torch.equal(seen(there)[name].cpu()[sound], seen(bench)[name][sound]), name


def has_choice(case: Case, row: int) -> bool:
    """Whether some token may come at each place; else it is anybody's which one does."""
    return case.ends[row] == MOST and all(
        states["automaton_state"][row] >= 0 for states in case.states
    )


def off_by(amount: int) -> Callable[..., Tensor]:
    choose = sampler.sample

    def changed(*given: Any, ahead_R: Tensor | None, **more: Any) -> Tensor:
        ahead_R = None if ahead_R is None else (ahead_R + amount).clamp_(min=0)
        return choose(*given, ahead_R=ahead_R, **more)

    return changed


def by_row(row_keys: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seeds_G2, lens_G: row_keys(seeds_G2, torch.arange(len(lens_G)).int())


def counting_all(accept: Callable[..., None]) -> Callable[..., None]:
    def changed(row: int, slot: int, sampled_T: Tensor, *state: Any) -> None:
        first, end = state[-1].starts_N1[row : row + 2].tolist()
        begin = int(state[1][slot])
        state[2][slot, begin : begin + end - first] = sampled_T[first:end]
        accept(row, slot, sampled_T, *state)

    return changed


def one_less(accept: Callable[..., None]) -> Callable[..., None]:
    def changed(row: int, slot: int, *state: Any) -> None:
        accept(row, slot, *state)
        state[-1].counts_N[row] -= 1

    return changed


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "ahead is one too few": lambda m: m.setattr(sampler, "sample", off_by(-1)),
    "ahead is one too many": lambda m: m.setattr(sampler, "sample", off_by(1)),
    "noise is by row": lambda m: m.setattr(
        sample_reference, "row_keys", by_row(sample_reference.row_keys)
    ),
    "all drafts count": lambda m: m.setattr(
        state_reference, "_accept_row", counting_all(state_reference._accept_row)
    ),
    "counts are one too few": lambda m: m.setattr(
        state_reference, "_accept_row", one_less(state_reference._accept_row)
    ),
    "places behind drafts are those before them": lambda m: m.setattr(
        sharing.SharedTokens, "last_of", lambda shared, counts_R: shared.starts_R1[:-1].clone()
    ),
    "masks are those of the first token": lambda m: m.setattr(
        sampler.DeviceAutomata,
        "behind",
        lambda automata, shared, behind=sampler.DeviceAutomata.behind: behind(
            automata, replace(shared, ahead_T=torch.zeros_like(shared.ahead_T))
        ),
    ),
    "guides do not walk": lambda m: m.setattr(
        sequence, "fill_masks", lambda guide, drafts, masks_KW: guide.fill_bitmask(masks_KW[0])
    ),
    "logprobs are by row of logits": lambda m: m.setattr(
        sampler.TokenLogprobTensors, "at", lambda logprobs, rows: logprobs
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_in_it_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    kind = {"places": "device", "masks": "device", "guides": "host"}.get(mutant.split()[0], "free")
    with pytest.raises(AssertionError):
        [check(kind, seed) for seed in range(4)]


def test_drafts_stand_where_a_row_may_yield_more_and_are_of_the_vocabulary() -> None:
    rows = [any_row(random.Random(seed), VOCAB) for seed in range(4)]
    bench = Bench(rows, VOCAB, room=9)
    state = bench.device_state
    lens = state["num_tokens"][:4].clone()
    state["max_len"][:4] = lens + torch.tensor([9, 3, 1, 0], dtype=torch.int32)
    state["num_drafts"][:4] = 6
    slots_R = torch.tensor([3, 0, 1, 2], dtype=torch.int32)
    given = {"num_tokens": 12, "most_yield": 5, "vocab_size": VOCAB}
    shared = share_out(state, slots_R, **given)
    assert shared.slots_R.tolist() == [3, 0, 1, 2, 4]
    assert shared.starts_R1.tolist() == [0, 1, 6, 9, 10, 12]
    assert shared.slots_T.tolist() == [3, 0, 0, 0, 0, 0, 1, 1, 1, 2, 4, 4]
    assert shared.ahead_T.tolist() == [0, 0, 1, 2, 3, 4, 0, 1, 2, 0, 0, 1]
    for slot, (first, count) in enumerate(zip(lens.tolist(), [4, 2, 0, 0], strict=True)):
        drafts = state["tokens"][slot, first : first + 5]  # what was there is no token
        assert drafts.tolist() == [VOCAB - 1] * count + [10**6] * (len(drafts) - count)
    assert share_out(state, slots_R, **given).starts_R1.tolist() == [0, 1, 2, 3, 4, 12]  # for once


def test_few_tokens_go_to_the_first_rows() -> None:
    rows = [any_row(random.Random(seed), VOCAB) for seed in range(3)]
    state = Bench(rows, VOCAB, room=9).device_state
    state["num_drafts"][:3] = 3
    slots_R = torch.arange(3, dtype=torch.int32)
    shared = share_out(state, slots_R, num_tokens=7, most_yield=9, vocab_size=VOCAB)
    assert shared.starts_R1.tolist() == [0, 4, 6, 7, 7]
