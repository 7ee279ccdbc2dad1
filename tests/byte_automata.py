"""Random byte automata, vocabularies and rows of a step at random places."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from octavo.guided.byte_automaton import AutomatonState, ByteAutomatonGuide, ByteAutomatonGuideState
from octavo_kernels.byte_automaton import AutomatonStates, TokenTable
from octavo_kernels.byte_automaton.tables import PLAIN_BYTES
from octavo_registry.guided import CALL, GO, MOST_DEPTH, RETURN, ByteAutomaton, GuideVocabulary

ALPHABET = b'ab{}"\\ \xc3\xa9'
"""What most bytes of random tokens are, so that they share beginnings."""


def random_automaton(rng: np.random.Generator, num_states: int, num_classes: int) -> ByteAutomaton:
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
    classes = rng.integers(0, num_classes, 256).astype(np.uint8)
    if num_classes > 2 and rng.random() < 0.5:
        # Like strings: in most states all plain bytes lead alike, in many to the next.
        num_plain = num_classes // 2
        classes[PLAIN_BYTES] = rng.integers(0, num_plain, PLAIN_BYTES.sum())
        strings = rng.random(num_states) < 0.8
        following = (np.arange(num_states) + 1) % num_states
        leads = np.where(rng.random(num_states) < 0.7, 4 * following + GO, table[:, 0])
        table[strings, :num_plain] = leads[strings, None]
    calls = rng.integers(0, num_states, (num_calls, 2)).astype(np.int32)
    if num_calls:
        # What the first call returns to calls it again.
        column = rng.integers(0, num_classes + 1)
        table[calls[0], column] = RETURN, CALL
    return ByteAutomaton(classes_B=classes, table_QC=table.astype(np.int32), calls_K2=calls)


def random_vocabulary(rng: np.random.Generator, num_tokens: int) -> GuideVocabulary:
    """With tokens that have no bytes, long ones, stops with bytes, and ids past the list."""

    def piece() -> bytes | None:
        kind, length = rng.random(), int(rng.integers(1, 9 if rng.random() < 0.8 else 40))
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


def random_place(rng: np.random.Generator, automaton: ByteAutomaton) -> AutomatonState:
    """Shallow, deep, or at the stack's end."""
    depth = int(rng.choice([0, 1, 3, MOST_DEPTH - 1, MOST_DEPTH]))
    state, *stack = rng.integers(0, len(automaton.table_QC), 1 + depth).tolist()
    return AutomatonState(state, tuple(stack))


def to(device: str, table: TokenTable | AutomatonStates) -> dict[str, Tensor]:
    fields = {field.name: getattr(table, field.name) for field in dataclasses.fields(table)}
    return {name: tensor.to(device, copy=True) for name, tensor in fields.items()}


def bits_of(mask_W: Tensor | np.ndarray, vocab_size: int) -> list[bool]:
    words = np.asarray(mask_W, np.int32)
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size].astype(bool).tolist()


def state_at(guide: ByteAutomatonGuide, place: AutomatonState) -> ByteAutomatonGuideState:
    return ByteAutomatonGuideState(guide, [place])


class Rows:
    """A pool of automata, and slots at random places of them."""

    def __init__(self, rng: np.random.Generator, num_rows: int, tokens: int, states: int = 25):
        self.vocabulary = random_vocabulary(rng, tokens)
        automata = [random_automaton(rng, int(rng.integers(1, states)), 9) for _ in range(5)]
        self.guides = [ByteAutomatonGuide(automaton, self.vocabulary) for automaton in automata]
        starts, pool = [], [np.full(4, -7, np.int32)]
        for guide in self.guides:
            starts.append(sum(map(len, pool)))
            pool += [guide.words, np.full(-len(guide.words) % 4, -7, np.int32)]
        self.pool_W = torch.from_numpy(np.concatenate(pool))
        num_slots = num_rows + 3
        self.slots_R = torch.from_numpy(rng.permutation(num_slots)[:num_rows].astype(np.int32))
        # By slot; None: no automaton.
        self.automata = [
            int(x) if (x := rng.integers(-2, 5)) >= 0 else None for _ in range(num_slots)
        ]
        self.places: list[AutomatonState] = []
        at_S = [0 if automaton is None else starts[automaton] for automaton in self.automata]
        lines = np.full((3 + MOST_DEPTH, num_slots), 3, np.int32)
        for slot, automaton in enumerate(self.automata):
            place = random_place(rng, automata[automaton or 0])
            self.places.append(place)
            dead = rng.random() < 0.05
            lines[:3, slot] = at_S[slot], -1 if dead else place.state, len(place.stack)
            lines[3 : 3 + len(place.stack), slot] = place.stack
        self.states = AutomatonStates(
            at_S=torch.from_numpy(lines[0].copy()),
            state_S=torch.from_numpy(lines[1].copy()),
            depth_S=torch.from_numpy(lines[2].copy()),
            stack_SD=torch.from_numpy(lines[3:].T.copy()),
        )
        self.tokens = table_of(self.vocabulary)
        self.masks_RW = torch.full((num_rows, -(-self.vocabulary.vocab_size // 32)), 5).int()
        self.mask_rows_R = torch.full((num_rows,), 99).int()
