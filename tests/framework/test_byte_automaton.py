"""Byte automata on the host: packed and read again, walked, and as guides of a vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import ParameterError, UnsupportedConstraint
from octavo.guided.byte_automaton import (
    AutomatonState,
    AutomatonWalker,
    ByteAutomatonGuide,
    automaton_guide,
    pack,
    unpack,
)
from octavo.testing.guided import bits_of
from octavo_registry.guided import CALL, GO, MOST_DEPTH, RETURN, ByteAutomaton, GuideVocabulary

A, B, OTHER = 0, 1, 2
"""Classes of bytes; the fourth column is the end of the text."""


def automaton(*rows: list[int], calls: tuple[tuple[int, int], ...] = ()) -> ByteAutomaton:
    classes_B = np.full(256, OTHER, np.uint8)
    classes_B[ord("a")], classes_B[ord("b")] = A, B
    return ByteAutomaton(
        classes_B=classes_B,
        table_QC=np.array(rows, np.int32),
        calls_K2=np.array(calls, np.int32).reshape(-1, 2),
    )


def go(state: int) -> int:
    return 4 * state + GO


BALANCED = automaton(
    [go(1), -1, -1, -1],  # the text is "a", balanced texts, "b"
    [CALL, go(2), -1, -1],
    [-1, -1, -1, GO],
    [go(4), RETURN, RETURN, RETURN],  # a balanced text: nothing, or "a", the same, "b", the same
    [4 + CALL, go(5), -1, -1],
    [RETURN, RETURN, RETURN, RETURN],
    [-1, go(5), -1, -1],
    calls=((3, 1), (3, 6)),
)


def walked(made: ByteAutomaton, text: bytes) -> AutomatonState | None:
    return AutomatonWalker(made).walk(AutomatonState(), text)


def test_what_is_packed_is_read_again() -> None:
    words = pack(BALANCED)
    assert words[:4].tolist() == [7, 4, 2, 0]
    assert len(words) == 4 + 64 + 7 * 4 + 2 * 2
    found = unpack(np.frombuffer(words.tobytes(), np.int32))
    assert np.array_equal(found.classes_B, BALANCED.classes_B)
    assert np.array_equal(found.table_QC, BALANCED.table_QC)
    assert np.array_equal(found.calls_K2, BALANCED.calls_K2)


def test_what_is_cut_off_is_no_automaton() -> None:
    with pytest.raises(ParameterError, match="not the size"):
        unpack(pack(BALANCED)[:-1])


@pytest.mark.parametrize(
    ("text", "may_end"),
    [("ab", True), ("aabb", True), ("aabab" + "b", True), ("a", False), ("", False)],
)
def test_calls_push_what_returns_pop(text: str, may_end: bool) -> None:
    place = walked(BALANCED, text.encode())
    assert place is not None
    assert AutomatonWalker(BALANCED).may_end(place) is may_end


@pytest.mark.parametrize("text", [b"b", b"abb", b"aba", b"ax"])
def test_a_byte_that_leads_nowhere_may_not_come(text: bytes) -> None:
    assert walked(BALANCED, text) is None


def test_a_stack_that_is_full_takes_no_call() -> None:
    deep = walked(BALANCED, b"a" * (MOST_DEPTH + 1))
    assert deep is not None
    assert len(deep.stack) == MOST_DEPTH
    assert walked(BALANCED, b"a" * (MOST_DEPTH + 2)) is None


def test_calls_without_end_take_no_byte() -> None:
    endless = automaton([CALL, -1, -1, -1], [RETURN] * 4, calls=((1, 0),))
    assert walked(endless, b"a") is None


def words(*tokens: bytes | None, width: int = 0) -> GuideVocabulary:
    """A stop token, whose bytes do not count, then the tokens."""
    return GuideVocabulary(
        token_bytes=[b"a", *tokens],
        special_ids={},
        stop_token_ids=(0,),
        vocab_size=width or len(tokens) + 1,
        encode=lambda text: [],
    )


def test_a_guide_masks_the_tokens_that_it_accepts() -> None:
    tokens = (b"a", b"ab", b"aab", b"b", b"bb", b"aabb", b"\xff\xff", b"\xff", None, b"abab", b"")
    guide = automaton_guide(pack(BALANCED).tobytes(), words(*tokens, width=40))
    state = guide.start()
    opens = [1, 2, 3, 4, 6, 10]
    for token, allowed in ((1, [1, 2, 3, 6]), (3, opens), (4, [4, 5]), (4, opens)):
        row = np.full(2, -1, np.int32)
        state.fill_bitmask(row)
        assert np.flatnonzero(bits_of(row)).tolist() == allowed
        assert [token for token in range(40) if state.allowed(token)] == allowed
        assert state.accept(token)
    assert state.is_finished()
    assert state.accept(0)  # the stop token
    assert state.is_finished()


def test_a_state_goes_back_and_forks() -> None:
    state = ByteAutomatonGuide(BALANCED, words(b"a", b"b")).start()
    fork = state.fork()
    assert state.accept(1)
    assert state.accept(2)
    assert not state.accept(2)
    assert fork.place == AutomatonState()
    state.rollback(1)
    assert not state.is_complete()
    assert state.accept(2)
    assert state.is_finished()


def test_without_a_token_that_ends_a_text_there_is_no_guide() -> None:
    vocabulary = GuideVocabulary(
        token_bytes=[b"a"], special_ids={}, stop_token_ids=(), vocab_size=1, encode=lambda text: []
    )
    with pytest.raises(UnsupportedConstraint, match="needs a token that ends a text"):
        automaton_guide(pack(BALANCED).tobytes(), vocabulary)
