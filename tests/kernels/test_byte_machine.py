from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.guided.byte_machine import MachineGuide, MachineState, Place, pack
from octavo_kernels import byte_machine
from octavo_kernels.byte_machine import MachineStates, TokenTable, fill_masks, reference, walk_
from octavo_registry import guided
from octavo_registry.guided import CALL, GO, MOST_DEPTH, RETURN, ByteMachine, GuideVocabulary

ALPHABET = b'ab{}"\\ \xc3\xa9'
"""What most bytes of random tokens are, so that they share beginnings."""


def random_machine(rng: np.random.Generator, num_states: int, num_classes: int) -> ByteMachine:
    """Most bytes lead on; calls nest and recurse, and some chains of them never end."""
    num_calls = int(rng.integers(0, 6))
    shape = (num_states, num_classes + 1)
    operations = rng.choice(
        [GO, CALL, RETURN],
        shape,
        p=[0.8, 0.08 if num_calls else 0.0, 0.12 + 0.08 * (not num_calls)],
    )
    numbers = np.where(
        operations == CALL,
        rng.integers(0, max(num_calls, 1), shape),
        rng.integers(0, num_states, shape),
    )
    table = np.where(rng.random(shape) < 0.25, -1, 4 * numbers + operations)
    table[rng.random(num_states) < 0.2, :-1] = -1
    return ByteMachine(
        classes_B=rng.integers(0, num_classes, 256).astype(np.uint8),
        table_QC=table.astype(np.int32),
        calls_K2=rng.integers(0, num_states, (num_calls, 2)).astype(np.int32),
    )


def random_vocabulary(rng: np.random.Generator, num_tokens: int) -> GuideVocabulary:
    """With tokens that have no bytes, long ones, stops with bytes, and ids past the list."""

    def piece() -> bytes | None:
        kind, length = rng.random(), int(rng.integers(1, 9))
        if kind < 0.05:
            return None if kind < 0.03 else b""
        if kind < 0.1:
            return bytes(rng.integers(0, 256, length, dtype=np.uint8))
        repeated = bytes(rng.choice(list(ALPHABET), 2).tolist())
        return repeated * 60 if kind < 0.12 else bytes(rng.choice(list(ALPHABET), length).tolist())

    pieces = [piece() for _ in range(num_tokens)]
    stops = tuple(int(token) for token in rng.choice(num_tokens, 3))
    return GuideVocabulary(
        token_bytes=pieces,
        special_ids={},
        stop_token_ids=stops,
        vocab_size=num_tokens + int(rng.integers(0, 70)),
        encode=lambda text: [],
    )


def table_of(vocabulary: GuideVocabulary, device: str = "cpu") -> TokenTable:
    return TokenTable.of(
        vocabulary.token_bytes, vocabulary.stop_token_ids, vocabulary.vocab_size, device
    )


def random_place(rng: np.random.Generator, machine: ByteMachine) -> Place:
    """Shallow, deep, or at the stack's end."""
    depth = int(rng.choice([0, 1, 3, MOST_DEPTH - 1, MOST_DEPTH]))
    state, *stack = rng.integers(0, len(machine.table_QC), 1 + depth).tolist()
    return Place(state, tuple(stack))


def bits_of(mask_W: Tensor | np.ndarray, vocab_size: int) -> list[bool]:
    words = np.asarray(mask_W, np.int32)
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size].astype(bool).tolist()


def state_at(guide: MachineGuide, place: Place) -> MachineState:
    return MachineState(guide, [place])


def test_limits_are_those_that_machines_have() -> None:
    assert byte_machine.MOST_DEPTH == guided.MOST_DEPTH
    assert byte_machine.MOST_HOPS == guided.MOST_HOPS


def test_masks_of_the_reference_are_what_the_walker_allows() -> None:
    rng = np.random.default_rng(0)
    num_allowed = num_deep = 0
    for _ in range(40):
        machine = random_machine(rng, int(rng.integers(1, 30)), int(rng.integers(1, 12)))
        vocabulary = random_vocabulary(rng, int(rng.integers(5, 150)))
        guide, tokens = MachineGuide(machine, vocabulary), table_of(vocabulary)
        words_W = torch.from_numpy(pack(machine))
        for _ in range(6):
            place = random_place(rng, machine)
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
    machine = ByteMachine(
        classes_B=np.array([byte == ord("(") for byte in range(256)], np.uint8),
        table_QC=np.array([[-1, 4 * 1, 0], [-1, CALL, 0], [4 + CALL, RETURN, -1]], np.int32),
        calls_K2=np.array([[0, 1], [2, 2]], np.int32),
    )
    tokens = TokenTable.of([b"(" * count for count in (1, 63, 64, 65, 66)] + [b"a"], [], 6, "cpu")
    words_W = torch.from_numpy(pack(machine))

    def found(state: int, depth: int) -> list[bool]:
        return bits_of(reference.mask(words_W, state, (1,) * depth, tokens), 6)

    assert found(0, 0) == [True, True, True, True, False, False]
    assert found(0, 1) == [True, True, True, False, False, False]
    assert found(0, MOST_DEPTH) == [True, False, False, False, False, False]
    assert found(2, 0) == [False] * 6
    returning = ByteMachine(
        classes_B=machine.classes_B,
        table_QC=np.array([[-1, RETURN, RETURN], [-1, 0, 0]], np.int32),
        calls_K2=np.zeros((0, 2), np.int32),
    )
    words_W = torch.from_numpy(pack(returning))
    stack = (1, *(0,) * (MOST_DEPTH - 1))
    assert bits_of(reference.mask(words_W, 0, stack, tokens), 1) == [True]


class Rows:
    """A pool of machines, and slots at random places of them."""

    def __init__(self, rng: np.random.Generator, num_rows: int, tokens: int, states: int = 25):
        self.vocabulary = random_vocabulary(rng, tokens)
        machines = [random_machine(rng, int(rng.integers(1, states)), 9) for _ in range(5)]
        self.guides = [MachineGuide(machine, self.vocabulary) for machine in machines]
        starts, pool = [], [np.full(4, -7, np.int32)]
        for guide in self.guides:
            starts.append(sum(map(len, pool)))
            pool += [guide.words, np.full(-len(guide.words) % 4, -7, np.int32)]
        self.pool_W = torch.from_numpy(np.concatenate(pool))
        num_slots = num_rows + 3
        self.slots_R = torch.from_numpy(rng.permutation(num_slots)[:num_rows].astype(np.int32))
        # By slot; None: no machine.
        self.machines = [
            int(x) if (x := rng.integers(-2, 5)) >= 0 else None for _ in range(num_slots)
        ]
        self.places: list[Place] = []
        at_S = [0 if machine is None else starts[machine] for machine in self.machines]
        lines = np.full((3 + MOST_DEPTH, num_slots), 3, np.int32)
        for slot, machine in enumerate(self.machines):
            place = random_place(rng, machines[machine or 0])
            self.places.append(place)
            dead = rng.random() < 0.05
            lines[:3, slot] = at_S[slot], -1 if dead else place.state, len(place.stack)
            lines[3 : 3 + len(place.stack), slot] = place.stack
        self.states = MachineStates(
            at_S=torch.from_numpy(lines[0].copy()),
            state_S=torch.from_numpy(lines[1].copy()),
            depth_S=torch.from_numpy(lines[2].copy()),
            stack_SD=torch.from_numpy(lines[3:].T.copy()),
        )
        self.tokens = table_of(self.vocabulary)
        self.masks_RW = torch.full((num_rows, -(-self.vocabulary.vocab_size // 32)), 5).int()
        self.mask_rows_R = torch.full((num_rows,), 99).int()


def test_rows_with_a_machine_get_masks_and_the_others_none() -> None:
    rows = Rows(np.random.default_rng(1), 40, 100)
    fill_masks(
        *(rows.slots_R, rows.states, rows.pool_W, rows.tokens, rows.masks_RW, rows.mask_rows_R)
    )
    for row, slot in enumerate(rows.slots_R.tolist()):
        machine = rows.machines[slot]
        found_W = rows.masks_RW[row]
        if machine is None:
            assert rows.mask_rows_R[row] == -1
            assert set(found_W.tolist()) == {5}
            continue
        assert rows.mask_rows_R[row] == row
        expected = np.zeros(len(found_W), np.int32)
        if rows.states.state_S[slot] >= 0:
            state_at(rows.guides[machine], rows.places[slot]).fill_bitmask(expected)
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
        for slot, machine in enumerate(rows.machines):
            state, depth = int(rows.states.state_S[slot]), int(rows.states.depth_S[slot])
            stack = tuple(rows.states.stack_SD[slot, :depth].tolist())
            old = int(before[0][slot]), tuple(before[2][slot, : int(before[1][slot])].tolist())
            if machine is None or slot not in drawn or old[0] < 0:
                assert (state, stack) == old
                continue
            expected = state_at(rows.guides[machine], rows.places[slot])
            token = drawn[slot]
            if token >= 0 and expected.accept(token):
                assert Place(state, stack) == expected.place
                num_moved += 1
            else:
                assert (state, stack) == (-1, old[1])
    assert num_moved > 150


def test_arguments_that_do_not_fit_are_refused() -> None:
    rows = Rows(np.random.default_rng(3), 4, 40)
    rest = (rows.states, rows.pool_W, rows.tokens)
    with pytest.raises(ValueError, match=r"slots is torch\.int64"):
        fill_masks(rows.slots_R.long(), *rest, rows.masks_RW, rows.mask_rows_R)
    with pytest.raises(ValueError, match="mask_rows has 3 rows; there are 4"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW, rows.mask_rows_R[:3])
    with pytest.raises(ValueError, match="are not of 4 rows and"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW[:3], rows.mask_rows_R)
    with pytest.raises(ValueError, match="must be contiguous int32"):
        fill_masks(rows.slots_R, *rest, rows.masks_RW[:, :-1], rows.mask_rows_R)
    with pytest.raises(ValueError, match="tokens has 1 rows; there are 4"):
        walk_(rows.slots_R, rows.slots_R[:1], *rest)
