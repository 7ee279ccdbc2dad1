"""Byte automata on the host: walked token by token, packed for the way to a device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ParameterError, UnsupportedConstraint
from octavo_registry.guided import (
    CALL,
    GO,
    MOST_DEPTH,
    MOST_HOPS,
    ByteAutomaton,
    GuideVocabulary,
)

HEADER_WORDS = 4
CLASS_WORDS = 64
"""Words of 4 bytes that have the class of each byte."""


def pack(automaton: ByteAutomaton) -> NDArray[np.int32]:
    """As a device reads it: states, columns, calls, 0; the classes; the table; the calls."""
    num_states, num_columns = automaton.table_QC.shape
    header = np.array([num_states, num_columns, len(automaton.calls_K2), 0], np.int32)
    classes = automaton.classes_B.view(np.int32)
    return np.concatenate([header, classes, automaton.table_QC.ravel(), automaton.calls_K2.ravel()])


def unpack(words: NDArray[np.int32]) -> ByteAutomaton:
    """What was packed, and checked: automata come from other processes."""
    num_states, num_columns, num_calls = words[:3].tolist() if len(words) > 2 else (0, 0, 0)
    table_words = num_states * num_columns
    num_words = HEADER_WORDS + CLASS_WORDS + table_words + 2 * num_calls
    if num_states < 1 or num_columns < 2 or num_calls < 0 or len(words) != num_words:
        raise ParameterError("a byte automaton has not the size that it says")
    classes, table, calls = np.split(words[HEADER_WORDS:], [CLASS_WORDS, CLASS_WORDS + table_words])
    automaton = ByteAutomaton(
        classes_B=classes.view(np.uint8),
        table_QC=table.reshape(num_states, num_columns),
        calls_K2=calls.reshape(num_calls, 2),
    )
    check(automaton)
    return automaton


def check(automaton: ByteAutomaton) -> None:
    """Raise where it names a class, state or call that it has not: a device does not look."""
    num_states, num_columns = automaton.table_QC.shape
    entries = automaton.table_QC[automaton.table_QC >= 0]
    numbers, operations = entries >> 2, entries & 3
    # By operation: GO, CALL, RETURN, whose number means nothing, and the one that is none.
    bounds = np.array([num_states, len(automaton.calls_K2), 2**29, 0])[operations]
    calls = automaton.calls_K2
    if (
        automaton.classes_B.max() >= num_columns - 1
        or (numbers >= bounds).any()
        or (calls < 0).any()
        or (calls >= num_states).any()
    ):
        raise ParameterError("a byte automaton names a class, state or call that it has not")


@dataclass(frozen=True, slots=True)
class AutomatonState:
    """Where a text stands in an automaton."""

    state: int = 0
    stack: tuple[int, ...] = ()


class _Lines(dict[int, list[int]]):
    """Lines of a table that were looked at: all of a million entries would take 80 ms."""

    def __init__(self, table: NDArray[np.int32]) -> None:
        self._whole = table

    def __missing__(self, number: int) -> list[int]:
        line: list[int] = self._whole[number].tolist()
        self[number] = line
        return line


class AutomatonWalker:
    """An automaton in Python's own numbers, which one byte after the other reads soonest."""

    def __init__(self, automaton: ByteAutomaton) -> None:
        self._classes: list[int] = automaton.classes_B.tolist()
        self._num_columns = automaton.table_QC.shape[1]
        self._table = _Lines(automaton.table_QC)
        self._calls = _Lines(automaton.calls_K2)

    def walk(self, place: AutomatonState, data: bytes) -> AutomatonState | None:
        """The place behind these bytes; None where they may not come."""
        state, stack = place.state, list(place.stack)
        for byte in data:
            target = self._enter(state, stack, self._classes[byte])
            if target is None:
                return None
            state = target
        return AutomatonState(state, tuple(stack))

    def may_end(self, place: AutomatonState) -> bool:
        """Whether the text may end there."""
        return self._enter(place.state, list(place.stack), -1) is not None

    def must_end(self, place: AutomatonState) -> bool:
        """Whether it may, and no byte may follow."""
        columns = range(self._num_columns - 1)
        return self.may_end(place) and all(
            self._enter(place.state, list(place.stack), column) is None for column in columns
        )

    def _enter(self, state: int, stack: list[int], column: int) -> int | None:
        """The state that the byte leads to; the stack is changed."""
        for _ in range(MOST_HOPS + 1):
            entry = self._table[state][column]
            number, operation = entry >> 2, entry & 3
            if entry < 0:
                return None
            if operation == GO:
                return number
            if operation == CALL:
                if len(stack) == MOST_DEPTH:
                    return None
                state, behind = self._calls[number]
                stack.append(behind)
            elif not stack:
                return None
            else:
                state = stack.pop()
        return None


class ByteAutomatonGuide:
    """A guide that a device can walk; on the host it makes masks too, in more time."""

    def __init__(self, automaton: ByteAutomaton, vocabulary: GuideVocabulary) -> None:
        if not vocabulary.stop_token_ids:
            raise UnsupportedConstraint(
                "a byte automaton needs a token that ends a text, and the model names none"
            )
        self.automaton = automaton
        self.vocabulary = vocabulary

    @cached_property
    def walker(self) -> AutomatonWalker:
        """Made by the first state."""
        return AutomatonWalker(self.automaton)

    @cached_property
    def words(self) -> NDArray[np.int32]:
        """The automaton as a device reads it."""
        return pack(self.automaton)

    @cached_property
    def digest(self) -> bytes:
        """A hash of the words: equal automata have equal ones."""
        return hashlib.blake2b(self.words.tobytes(), digest_size=16).digest()

    @cached_property
    def mask(self) -> Callable[[AutomatonState], NDArray[np.int32]]:
        """The tokens that may come at a place; the last few places' are remembered."""
        # Torch is for engines and tests: automata are compiled and packed without.
        import torch

        from octavo_kernels.byte_automaton import TokenTable, reference

        vocabulary, words_W = self.vocabulary, torch.from_numpy(self.words)
        tokens = TokenTable.of(
            vocabulary.token_bytes, vocabulary.stop_token_ids, vocabulary.vocab_size, "cpu"
        )

        @lru_cache(maxsize=64)
        def mask(place: AutomatonState) -> NDArray[np.int32]:
            return reference.mask(words_W, place.state, place.stack, tokens).numpy()

        return mask

    def start(self) -> ByteAutomatonGuideState:
        """At the beginning."""
        return ByteAutomatonGuideState(self, [AutomatonState()])


def automaton_guide(packed: bytes, vocabulary: GuideVocabulary) -> ByteAutomatonGuide:
    """The guide of an automaton that came with a request."""
    return ByteAutomatonGuide(unpack(np.frombuffer(packed, np.int32)), vocabulary)


class ByteAutomatonGuideState:
    """The places that a sequence went through; a stop token leaves it where it is."""

    def __init__(self, guide: ByteAutomatonGuide, places: list[AutomatonState]) -> None:
        self.guide = guide
        self._places = places

    @property
    def place(self) -> AutomatonState:
        """Where it stands."""
        return self._places[-1]

    def allowed(self, token: int) -> bool:
        """Whether its bytes lead somewhere, or it may end the text."""
        return self._behind(token) is not None

    def accept(self, token: int) -> bool:
        """Go where the token leads."""
        place = self._behind(token)
        if place is None:
            return False
        self._places.append(place)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Go back."""
        del self._places[len(self._places) - num_tokens :]

    def fork(self) -> ByteAutomatonGuideState:
        """A copy; places do not change."""
        return ByteAutomatonGuideState(self.guide, list(self._places))

    def forced(self) -> list[int]:
        """None: an automaton does not know which of a text's spellings is the model's own."""
        return []

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Fill the mask by the kernel's reference, for all tokens together."""
        row[:] = self.guide.mask(self.place)

    def is_complete(self) -> bool:
        """Whether the text may end."""
        return self.guide.walker.may_end(self.place)

    def is_finished(self) -> bool:
        """Whether it must."""
        return self.guide.walker.must_end(self.place)

    def _behind(self, token: int) -> AutomatonState | None:
        vocabulary, walker = self.guide.vocabulary, self.guide.walker
        if token in vocabulary.stop_token_ids:
            return self.place if walker.may_end(self.place) else None
        known = token < len(vocabulary.token_bytes)
        data = vocabulary.token_bytes[token] if known else None
        return walker.walk(self.place, data) if data else None
