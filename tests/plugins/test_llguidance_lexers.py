"""States of llguidance that share a lexer which comes to its limit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from octavo.errors import UnsupportedConstraint
from octavo.testing.guided_samples import vocabulary
from octavo_plugins.guided.llguidance import backend
from octavo_plugins.guided.llguidance.backend import Backend, Guide, State
from octavo_registry.guided import Constraint

WORDS = vocabulary()
BACKEND = Backend(WORDS)
FIRST_BYTE = WORDS.token_bytes.index(b"\0")
A, B = (FIRST_BYTE + ord(letter) for letter in "ab")
GROWING = Constraint(kind="regex", value="[ab]*a[ab]{12}c")
"""Each new text takes more states of the lexer."""
NUM_ROWS = 64


@pytest.fixture(autouse=True)
def _few_states(monkeypatch) -> None:
    monkeypatch.setattr(backend, "LIMITS", LLParserLimits(max_lexer_states=100))


def new_row() -> np.ndarray:
    return np.zeros((WORDS.vocab_size + 31) // 32, np.int32)


def to_the_limit(state: State) -> None:
    chance = random.Random(0)
    for _ in range(999):
        state.fill_bitmask(new_row())
        assert state.accept(chance.choice([A, B]))


def counting_guide() -> tuple[Guide, list[LLMatcher]]:
    """A guide, and the matchers that were compiled for it."""
    plain = BACKEND.compile(GROWING)
    compiled: list[LLMatcher] = []

    def make() -> LLMatcher:
        compiled.append(plain._make())
        return compiled[-1]

    return Guide(make, plain.stop_token_ids, plain.executor), compiled


def masks_of(states: list[State]) -> tuple[list[Exception | None], np.ndarray]:
    rows = np.stack([new_row() for _ in states])
    return list(states[0].fill_bitmasks(states, rows)), rows


def test_a_request_at_a_limit_of_the_lexer_fails_alone() -> None:
    guide = BACKEND.compile(GROWING)
    greedy, modest, late = guide.start(), guide.start(), guide.start()
    for _ in range(3):
        assert modest.accept(B)
    assert late.accept(B)
    forked = modest.fork()
    with pytest.raises(UnsupportedConstraint, match="too many states"):
        to_the_limit(greedy)

    row = new_row()
    modest.fill_bitmask(row)
    assert modest.allowed(A)
    assert modest.accept(B)
    assert row.any()
    modest.rollback(4)
    assert not modest.is_complete()
    late.rollback(1)
    assert late.accept(B)
    errors, rows = masks_of([forked, guide.start()])
    assert errors == [None, None]
    assert rows.any(axis=1).all()


def test_a_request_fails_at_once_at_a_limit_of_a_lexer_that_was_its_own() -> None:
    guide, compiled = counting_guide()
    state = guide.start()
    with pytest.raises(UnsupportedConstraint, match="too many states"):
        to_the_limit(state)
    assert len(state._tokens) < 100
    (error,), _ = masks_of([state])
    assert "too many states" in str(error)
    for ask in (
        lambda: state.rollback(1),
        state.is_complete,
        state.forced,
        lambda: state.allowed(A),
    ):
        with pytest.raises(UnsupportedConstraint, match="too many states"):
            ask()
    assert len(compiled) == 1


def test_all_that_shared_a_lexer_go_on_with_one_fresh_lexer() -> None:
    guide, compiled = counting_guide()
    greedy, *others = (guide.start() for _ in range(1 + NUM_ROWS))
    for place, state in enumerate(others):
        assert all(state.accept(B) for _ in range(place % 5))
    with pytest.raises(UnsupportedConstraint, match="too many states"):
        to_the_limit(greedy)
    before = len(compiled)
    errors, rows = masks_of(others)
    assert errors == [None] * NUM_ROWS
    assert rows.any(axis=1).all()
    assert len(compiled) - before <= 1
    assert guide.start().accept(A)
    assert len(compiled) - before <= 1


def test_a_step_costs_a_renewal_for_all_and_one_for_each_that_fails_again() -> None:
    guide, compiled = counting_guide()
    states = [guide.start() for _ in range(NUM_ROWS)]
    greedy = states[:: NUM_ROWS // 3][:3]
    chance = random.Random(0)
    running = list(states)
    while any(state in running for state in greedy):
        for state in greedy:
            if state in running:
                state.accept(chance.choice([A, B]))
        before = len(compiled)
        errors, _ = masks_of(running)
        assert len(compiled) - before <= 1 + len(greedy)
        running = [state for state, error in zip(running, errors, strict=True) if error is None]
    assert running == [state for state in states if state not in greedy]
