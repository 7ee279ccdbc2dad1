"""Byte automata on the shadow device: walked from the words of its state and its pool."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from octavo.guided.byte_automaton import (
    CLASS_WORDS,
    HEADER_WORDS,
    AutomatonState,
    AutomatonWalker,
    ByteAutomatonGuide,
    unpack,
)
from octavo.steps.loads import AutomatonLoad
from octavo_registry.guided import CALL, GO, RETURN, ByteAutomaton, GuideVocabulary


def automaton_guide(guide: Any) -> ByteAutomatonGuide:
    """The same as a ``RemainderGuide``, of tokens of a byte each; no two share an object."""
    vocabulary = GuideVocabulary(
        token_bytes=[bytes([token]) for token in range(guide.vocab_size)],
        special_ids={},
        stop_token_ids=(guide.vocab_size,),
        vocab_size=guide.vocab_size,
        encode=list,
    )
    automaton = _automaton(type(guide), guide.remainder, guide.length, guide.vocab_size)
    return ByteAutomatonGuide(automaton, vocabulary)


@lru_cache
def _automaton(kind: type, remainder: int, length: int, vocab_size: int) -> ByteAutomaton:
    """A state for each sum and count of tokens, and the same behind a call.

    The second of ten tokens pushes what the sixth pops, and the first what the end does.
    """
    num_states = 6 * (length + 1)
    last, under = num_states, num_states + 1
    table = np.full((num_states + 2, vocab_size + 2), -1, np.int32)
    table[last, -1], table[under, -1] = 4 * last + GO, RETURN
    calls = []
    for count in range(length):
        for total in range(3):
            outer, inner = 6 * count + total, 6 * count + total + 3
            tokens = ([total] + [0] * (count - 1))[:count]
            for token in kind(remainder, length, vocab_size, tokens).choices():
                table[inner, token] = 4 * (6 * (count + 1) + (total + token) % 3) + GO
            if count % 10 == 5:
                table[outer] = RETURN
                continue
            behind = under if count else last
            if count % 10 == 1 and count + 4 < length:  # till there no token has a choice
                ahead = kind(remainder, length, vocab_size, tokens)
                for _ in range(4):
                    ahead.accept(*ahead.choices())
                behind = 6 * (count + 4) + sum(ahead.tokens) % 3 + 3
            elif count % 10:
                table[outer] = table[inner]
                continue
            table[outer] = np.where(table[inner] < 0, -1, 4 * len(calls) + CALL)
            calls.append((inner, behind))
    table[6 * length : num_states, -1] = RETURN
    classes = np.full(256, vocab_size, np.uint8)
    classes[:vocab_size] = np.arange(vocab_size)
    return ByteAutomaton(classes_B=classes, table_QC=table, calls_K2=np.array(calls, np.int32))


@lru_cache
def _walker(words: bytes) -> AutomatonWalker:
    return AutomatonWalker(unpack(np.frombuffer(words, np.int32)))


@lru_cache(maxsize=4096)
def _allowed(walker: AutomatonWalker, place: AutomatonState) -> frozenset[int]:
    return frozenset(t for t in range(256) if walker.walk(place, bytes([t])) is not None)


PLACE = ("state", "depth", "stack")


class ShadowAutomata:
    """The pool, and the rows' places, by the fields of the device's state."""

    def __init__(self, field: Callable[[str], np.ndarray], num_words: int) -> None:
        self._field = field
        self._pool = np.full(num_words, -7, np.int32)

    def load(self, load: AutomatonLoad, *, is_garbage: bool) -> None:
        assert load.first >= 4
        assert load.first % 4 == 0
        words = load.words
        self._pool[load.first : load.first + len(words)] = -7 if is_garbage else words

    def has(self, slot: int) -> bool:
        return bool(self._field("automaton")[slot])

    def allowed(self, slot: int) -> frozenset[int]:
        place = self._place(slot)
        return frozenset() if place is None else _allowed(self._at(slot), place)

    def walk(self, slot: int, token: int) -> None:
        place = self._place(slot)
        found = None if place is None else self._at(slot).walk(place, bytes([token]))
        self._field("automaton_state")[slot] = -1 if found is None else found.state
        if found is not None:
            self._field("automaton_depth")[slot] = len(found.stack)
            self._field("automaton_stack")[slot, : len(found.stack)] = found.stack

    def save(self, slot: int) -> list[np.ndarray]:
        """What ``restore`` is to bring back."""
        return [self._field(f"automaton_{name}")[slot].copy() for name in PLACE]

    def restore(self, slot: int, place: list[np.ndarray]) -> None:
        for name, values in zip(PLACE, place, strict=True):
            self._field(f"automaton_{name}")[slot] = values

    def _place(self, slot: int) -> AutomatonState | None:
        state, depth = self._field("automaton_state")[slot], self._field("automaton_depth")[slot]
        stack = self._field("automaton_stack")[slot, :depth].tolist()
        return None if state < 0 else AutomatonState(int(state), tuple(stack))

    def _at(self, slot: int) -> AutomatonWalker:
        words = self._pool[self._field("automaton")[slot] :]
        num_states, num_columns, num_calls = words[:3].tolist()
        size = HEADER_WORDS + CLASS_WORDS + num_states * num_columns + 2 * num_calls
        return _walker(words[:size].tobytes())
