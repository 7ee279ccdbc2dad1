from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from byte_automata import (
    Rows,
    bits_of,
    random_automaton,
    random_place,
    random_vocabulary,
    state_at,
    table_of,
    to,
)
from octavo.guided.byte_automaton import AutomatonState, ByteAutomatonGuide, pack
from octavo_kernels import byte_automaton
from octavo_kernels.byte_automaton import (
    AutomatonStates,
    TokenTable,
    fill_masks,
    reference,
    walk_,
    walk_drafts,
)
from octavo_kernels.byte_automaton.tables import GROUP, LENGTH_SHIFT, PLAIN_BIT, PLAIN_BYTES, WINDOW
from octavo_registry import guided
from octavo_registry.guided import CALL, MOST_DEPTH, RETURN, ByteAutomaton


def test_limits_are_those_that_automata_have() -> None:
    assert byte_automaton.MOST_DEPTH == guided.MOST_DEPTH
    assert byte_automaton.MOST_HOPS == guided.MOST_HOPS


def test_masks_of_the_reference_are_what_the_walker_allows() -> None:
    rng = np.random.default_rng(0)
    num_allowed = num_deep = 0
    for _ in range(40):
        automaton = random_automaton(rng, int(rng.integers(1, 30)), int(rng.integers(1, 12)))
        vocabulary = random_vocabulary(rng, int(rng.integers(5, 150)))
        guide, tokens = ByteAutomatonGuide(automaton, vocabulary), table_of(vocabulary)
        words_W = torch.from_numpy(pack(automaton))
        for _ in range(6):
            place = random_place(rng, automaton)
            state = state_at(guide, place)
            expected = [state.allowed(token) for token in range(vocabulary.vocab_size)]
            found_W = reference.mask(words_W, place.state, place.stack, tokens)
            assert bits_of(found_W, vocabulary.vocab_size) == expected
            assert not any(bits_of(found_W, 32 * len(found_W))[vocabulary.vocab_size :])
            row = np.full(len(found_W), 7, np.int32)
            state.fill_bitmask(row)
            assert np.array_equal(row, found_W.numpy())
            num_allowed += sum(expected)
            num_deep += any(expected) and len(place.stack) == MOST_DEPTH
    assert num_allowed > 1000
    assert num_deep > 10


def test_a_call_too_deep_and_a_chain_too_long_may_not_come() -> None:
    # State 0 calls itself on "(" after one more "(" is taken; state 2 calls without end.
    automaton = ByteAutomaton(
        classes_B=np.array([byte == ord("(") for byte in range(256)], np.uint8),
        table_QC=np.array([[-1, 4 * 1, 0], [-1, CALL, 0], [4 + CALL, RETURN, -1]], np.int32),
        calls_K2=np.array([[0, 1], [2, 2]], np.int32),
    )
    tokens = TokenTable.of([b"(" * count for count in (1, 63, 64, 65, 66)] + [b"a"], [], 6, "cpu")
    words_W = torch.from_numpy(pack(automaton))

    def found(state: int, depth: int) -> list[bool]:
        return bits_of(reference.mask(words_W, state, (1,) * depth, tokens), 6)

    assert found(0, 0) == [True, True, True, True, False, False]
    assert found(0, 1) == [True, True, True, False, False, False]
    assert found(0, MOST_DEPTH) == [True, False, False, False, False, False]
    assert found(2, 0) == [False] * 6
    returning = ByteAutomaton(
        classes_B=automaton.classes_B,
        table_QC=np.array([[-1, RETURN, RETURN], [-1, 0, 0]], np.int32),
        calls_K2=np.zeros((0, 2), np.int32),
    )
    words_W = torch.from_numpy(pack(returning))
    stack = (1, *(0,) * (MOST_DEPTH - 1))
    assert bits_of(reference.mask(words_W, 0, stack, tokens), 1) == [True]


def test_rows_with_an_automaton_get_masks_and_the_others_none() -> None:
    rows = Rows(np.random.default_rng(1), 40, 100)
    fill_masks(
        *(rows.slots_R, rows.states, rows.pool_W, rows.tokens, rows.masks_RW, rows.mask_rows_R)
    )
    for row, slot in enumerate(rows.slots_R.tolist()):
        automaton = rows.automata[slot]
        found_W = rows.masks_RW[row]
        if automaton is None:
            assert rows.mask_rows_R[row] == -1
            assert set(found_W.tolist()) == {5}
            continue
        assert rows.mask_rows_R[row] == row
        expected = np.zeros(len(found_W), np.int32)
        if rows.states.state_S[slot] >= 0:
            state_at(rows.guides[automaton], rows.places[slot]).fill_bitmask(expected)
        assert np.array_equal(found_W.numpy(), expected)


def test_drawn_tokens_move_rows_as_the_walker_does() -> None:
    rng = np.random.default_rng(2)
    num_moved = 0
    for _ in range(60):
        rows = Rows(rng, 40, 100)
        before = [
            x.clone() for x in (rows.states.state_S, rows.states.depth_S, rows.states.stack_SD)
        ]
        tokens_R = torch.from_numpy(
            rng.integers(-1, rows.vocabulary.vocab_size + 2, 40).astype(np.int32)
        )
        walk_(rows.slots_R, tokens_R, rows.states, rows.pool_W, rows.tokens)
        drawn = dict(zip(rows.slots_R.tolist(), tokens_R.tolist(), strict=True))
        for slot, automaton in enumerate(rows.automata):
            state, depth = int(rows.states.state_S[slot]), int(rows.states.depth_S[slot])
            stack = tuple(rows.states.stack_SD[slot, :depth].tolist())
            old = int(before[0][slot]), tuple(before[2][slot, : int(before[1][slot])].tolist())
            if automaton is None or slot not in drawn or old[0] < 0:
                assert (state, stack) == old
                continue
            expected = state_at(rows.guides[automaton], rows.places[slot])
            token = drawn[slot]
            if token >= 0 and expected.accept(token):
                assert AutomatonState(state, stack) == expected.place
                num_moved += 1
            else:
                assert (state, stack) == (-1, old[1])
    assert num_moved > 150


class DraftedRows:
    """Rows with drafts behind their tokens, of which most may come; some are of no token."""

    def __init__(self, rng: np.random.Generator, num_rows: int, tokens: int, most: int) -> None:
        self.rows = rows = Rows(rng, num_rows, tokens)
        num_slots, width = len(rows.states.at_S), 2 * most
        self.num_tokens_S = torch.from_numpy(rng.integers(1, most + 2, num_slots).astype(np.int32))
        self.tokens_SL = torch.full((num_slots, width), -9, dtype=torch.int32)
        self.slots_R = rows.slots_R.repeat_interleave(most + 1)
        self.ahead_R = torch.arange(most + 1, dtype=torch.int32).repeat(num_rows)
        self.texts: list[list[int]] = []
        for slot in rows.slots_R.tolist():
            automaton, first = rows.automata[slot], int(self.num_tokens_S[slot])
            room = self.tokens_SL[slot, first : first + most]
            drafts = rng.integers(-1, rows.vocabulary.vocab_size + 2, len(room)).tolist()
            if automaton is not None and rows.states.state_S[slot] >= 0:
                state = state_at(rows.guides[automaton], rows.places[slot])
                for place in range(len(drafts)):
                    allowed = [t for t in range(rows.vocabulary.vocab_size) if state.allowed(t)]
                    if allowed and rng.random() < 0.9:
                        drafts[place] = int(rng.choice(allowed))
                    if not (drafts[place] >= 0 and state.accept(drafts[place])):
                        break
            room.copy_(torch.tensor(drafts, dtype=torch.int32))
            self.texts.append(drafts)

    def walk(self, device: str = "cpu") -> AutomatonStates:
        rows, states = self.rows, AutomatonStates(**to(device, self.rows.states))
        tables = TokenTable(**to(device, rows.tokens))
        lists = (self.slots_R, self.ahead_R, self.tokens_SL, self.num_tokens_S)
        return walk_drafts(
            *(tensor.to(device) for tensor in lists), states, rows.pool_W.to(device), tables
        )


def test_drafts_lead_where_their_tokens_do_one_by_one() -> None:
    num_alive = num_dead = 0
    for seed in range(12):
        drafted = DraftedRows(np.random.default_rng(seed), 12, 60, most=4)
        rows, most = drafted.rows, 4
        lines = drafted.walk()
        one = AutomatonStates(**to("cpu", rows.states))
        for ahead in range(most + 1):
            for row, slot in enumerate(rows.slots_R.tolist()):
                line = row * (most + 1) + ahead
                assert lines.at_S[line] == one.at_S[slot]
                if not one.at_S[slot]:
                    continue
                depth = int(one.depth_S[slot])
                assert (lines.state_S[line], lines.depth_S[line]) == (one.state_S[slot], depth)
                assert torch.equal(lines.stack_SD[line, :depth], one.stack_SD[slot, :depth])
                num_alive += ahead == most and bool(one.state_S[slot] >= 0)
                num_dead += ahead == most and bool(one.state_S[slot] < 0)
            next_R = torch.tensor([(*text, *[-1] * most)[ahead] for text in drafted.texts])
            walk_(rows.slots_R, next_R.int(), one, rows.pool_W, rows.tokens)
    assert num_alive > 20
    assert num_dead > 20


def test_a_row_goes_on_from_behind_the_drafts_that_count() -> None:
    drafted = DraftedRows(np.random.default_rng(20), 30, 60, most=3)
    rows, lines = drafted.rows, drafted.walk()
    rng = np.random.default_rng(21)
    accepted = rng.integers(0, 4, 30).tolist()
    sampled = torch.from_numpy(rng.integers(0, rows.vocabulary.vocab_size, 30).astype(np.int32))
    one = AutomatonStates(**to("cpu", rows.states))
    for ahead in range(3):
        some = torch.tensor([ahead < count for count in accepted])
        next_R = torch.tensor([(*text, -1, -1, -1)[ahead] for text in drafted.texts]).int()
        walk_(rows.slots_R[some], next_R[some], one, rows.pool_W, rows.tokens)
    walk_(rows.slots_R, sampled, one, rows.pool_W, rows.tokens)
    lines_R = torch.arange(0, 120, 4, dtype=torch.int32) + torch.tensor(accepted).int()
    walk_(*(rows.slots_R, sampled, rows.states, rows.pool_W, rows.tokens), behind=(lines, lines_R))
    assert_states_are_equal(rows.states, one)


def assert_states_are_equal(found: AutomatonStates, expected: AutomatonStates) -> None:
    """Behind the depth a stack may have anything, and all of a row without an automaton."""
    guided = expected.at_S != 0
    assert torch.equal(found.at_S.cpu(), expected.at_S)
    for name in ("state_S", "depth_S"):
        assert torch.equal(getattr(found, name).cpu()[guided], getattr(expected, name)[guided])
    is_stacked_SD = torch.arange(MOST_DEPTH) < expected.depth_S[:, None]
    is_stacked_SD &= guided[:, None]
    assert torch.equal(found.stack_SD.cpu()[is_stacked_SD], expected.stack_SD[is_stacked_SD])


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "most"), [(1, 1), (7, 16), (64, 3), (300, 4)])
def test_drafts_on_the_device_lead_where_the_reference_says(num_rows: int, most: int) -> None:
    rng = np.random.default_rng(num_rows)
    drafted = DraftedRows(rng, num_rows, 60, most)
    rows, expected, found = drafted.rows, drafted.walk(), drafted.walk("cuda")
    assert_states_are_equal(found, expected)
    counts_R = torch.from_numpy(rng.integers(0, most + 1, num_rows).astype(np.int32))
    lines_R = torch.arange(num_rows, dtype=torch.int32) * (most + 1) + counts_R
    sampled_R = torch.from_numpy(rng.integers(-1, 62, num_rows).astype(np.int32))
    states = AutomatonStates(**to("cuda", rows.states))
    tokens = TokenTable(**to("cuda", rows.tokens))
    walk_(
        *(rows.slots_R.cuda(), sampled_R.cuda(), states, rows.pool_W.cuda(), tokens),
        behind=(found, lines_R.cuda()),
    )
    walk_(
        *(rows.slots_R, sampled_R, rows.states, rows.pool_W, rows.tokens),
        behind=(expected, lines_R),
    )
    assert_states_are_equal(states, rows.states)


def test_each_group_holds_its_tokens_bytes_word_by_word() -> None:
    for num_tokens in (1, 40, 2500):
        tokens = table_of(random_vocabulary(np.random.default_rng(4), num_tokens))
        stops, words_M = set(tokens.stops_K.tolist()), tokens.words_M.numpy()
        found: dict[int, bytes] = {}
        for group, items in enumerate(tokens.order_GL.tolist()):
            start = int(tokens.word_starts_G[group])
            for lane, item in enumerate(items):
                length, token = item >> LENGTH_SHIFT, item % WINDOW
                token += group * GROUP // WINDOW * WINDOW
                num_words = -(-max(length, 0) // 4)
                data = words_M[start + lane :: GROUP][:num_words].tobytes()
                found[token] = data[: max(length, 0)]
                assert (length == -1) == (token in stops)
                is_plain = length > 0 and all(PLAIN_BYTES[list(found[token])])
                assert bool(item & PLAIN_BIT) == is_plain
                assert not any(data[max(length, 0) :])
        assert sorted(found) == list(range(-(-tokens.vocab_size // WINDOW) * WINDOW))
        assert all(found[token] == tokens.data(token) for token in found)


def test_a_vocabulary_without_bytes_allows_its_stops_alone() -> None:
    tokens = TokenTable.of([None, b"", b"end"], [2], 3, "cpu")
    automaton = ByteAutomaton(
        classes_B=np.zeros(256, np.uint8),
        table_QC=np.zeros((1, 2), np.int32),
        calls_K2=np.zeros((0, 2), np.int32),
    )
    found_W = reference.mask(torch.from_numpy(pack(automaton)), 0, (), tokens)
    assert bits_of(found_W, 3) == [False, False, True]


def test_arguments_that_do_not_fit_are_refused() -> None:
    rows = Rows(np.random.default_rng(3), 4, 40)
    rest = (rows.states, rows.pool_W, rows.tokens)
    with pytest.raises(ValueError, match=r"slots is torch\.int64"):
        fill_masks(rows.slots_R.long(), *rest, rows.masks_RW, rows.mask_rows_R)
    with pytest.raises(ValueError, match="mask_rows has 3 rows; there are 4"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW, rows.mask_rows_R[:3])
    with pytest.raises(ValueError, match="8193 rows; there may be 8192"):
        fill_masks(*(torch.zeros(8193).int(), *rest, rows.masks_RW, torch.zeros(8193).int()))
    with pytest.raises(ValueError, match="are not of 4 rows and"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW[:3], rows.mask_rows_R)
    with pytest.raises(ValueError, match="must be contiguous int32"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW[:, :-1], rows.mask_rows_R)
    with pytest.raises(ValueError, match="tokens has 1 rows; there are 4"):
        walk_(rows.slots_R, rows.slots_R[:1], *rest)


class OnDevice:
    """A copy of rows there; a graph of a mask and a walk reads and moves it."""

    def __init__(self, rows: Rows) -> None:
        self.states = AutomatonStates(**to("cuda", rows.states))
        self.tokens = TokenTable(**to("cuda", rows.tokens))
        self.slots_R, self.pool_W = rows.slots_R.cuda(), rows.pool_W.cuda()
        self.masks_RW, self.mask_rows_R = rows.masks_RW.cuda(), rows.mask_rows_R.cuda()
        self.drawn_R = torch.zeros_like(self.slots_R)

    def step(self) -> None:
        rest = (self.states, self.pool_W, self.tokens)
        fill_masks(self.slots_R, *rest, self.masks_RW, self.mask_rows_R)
        walk_(self.slots_R, self.drawn_R, *rest)


def assert_step_is_the_same(rows: Rows, found: OnDevice, drawn_R: Tensor) -> None:
    """The reference's masks, then its states after these tokens."""
    rest = (rows.states, rows.pool_W, rows.tokens)
    fill_masks(rows.slots_R, *rest, rows.masks_RW, rows.mask_rows_R)
    assert torch.equal(found.masks_RW.cpu(), rows.masks_RW)
    assert torch.equal(found.mask_rows_R.cpu(), rows.mask_rows_R)
    walk_(rows.slots_R, drawn_R, *rest)
    states = to("cpu", found.states)
    for name in ("at_S", "state_S", "depth_S"):
        assert torch.equal(states[name], getattr(rows.states, name))
    is_stacked_SD = torch.arange(MOST_DEPTH) < rows.states.depth_S[:, None]
    expected_SD = rows.states.stack_SD
    assert torch.equal(states["stack_SD"][is_stacked_SD], expected_SD[is_stacked_SD])


def some_allowed(rows: Rows, rng: np.random.Generator) -> Tensor:
    """For most rows a token that may come, for some any."""
    drawn = rng.integers(-1, rows.vocabulary.vocab_size + 2, len(rows.slots_R))
    rest = (rows.states, rows.pool_W, rows.tokens)
    fill_masks(rows.slots_R, *rest, rows.masks_RW, rows.mask_rows_R)
    for row, mask_W in enumerate(rows.masks_RW):
        allowed = np.flatnonzero(bits_of(mask_W, rows.vocabulary.vocab_size))
        if len(allowed) and rng.random() < 0.8:
            drawn[row] = rng.choice(allowed)
    return torch.from_numpy(drawn.astype(np.int32))


@pytest.mark.gpu
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 5000), (7, 1000), (64, 40), (300, 3000)])
def test_steps_on_the_device_equal_the_reference(num_rows: int, num_tokens: int) -> None:
    rng = np.random.default_rng(num_rows)
    for num_guided in (*[num_rows] * 6, 1, 0):  # at most
        rows = Rows(rng, num_rows, num_tokens)
        rows.states.at_S[rows.slots_R[num_guided:].long()] = 0
        found = OnDevice(rows)
        for _ in range(3):
            found.drawn_R.copy_(some_allowed(rows, rng))
            found.step()
            assert_step_is_the_same(rows, found, found.drawn_R.cpu())


@pytest.mark.gpu
def test_a_recorded_step_follows_the_states_that_it_left_and_that_were_changed() -> None:
    rng = np.random.default_rng(6)
    rows = Rows(rng, 64, 2000)
    found = OnDevice(rows)
    before = to("cuda", found.states)
    found.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found.step()
    for name, tensor in before.items():
        getattr(found.states, name).copy_(tensor)
    for step in range(6):
        if step == 3:
            for states in (rows.states, found.states):
                states.state_S.zero_()
                states.depth_S.zero_()
        found.drawn_R.copy_(some_allowed(rows, rng))
        graph.replay()
        assert_step_is_the_same(rows, found, found.drawn_R.cpu())


@pytest.mark.gpu
def test_a_state_or_a_stack_of_another_automaton_leads_nowhere() -> None:
    rows = Rows(np.random.default_rng(7), 64, 2000)
    found = OnDevice(rows)
    found.states.state_S.fill_(2**30)
    found.states.depth_S.fill_(2**30)
    found.states.stack_SD.fill_(-(2**30))
    found.step()
    is_guided_R = found.mask_rows_R >= 0
    assert is_guided_R.any()
    assert not found.masks_RW[is_guided_R].any()
    found.states.state_S.zero_()
    found.step()
    torch.cuda.synchronize()
