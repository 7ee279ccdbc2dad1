from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import ParameterError
from octavo.guided.byte_automaton import pack, unpack
from octavo_registry.guided import CALL, GO, RETURN, ByteAutomaton


def automaton() -> ByteAutomaton:
    """Brackets in brackets."""
    classes = np.zeros(256, np.uint8)
    classes[list(b"[]")] = 1, 2
    return ByteAutomaton(
        classes_B=classes,
        table_QC=np.array(
            [[-1, 4 * 1 + GO, -1, -1], [-1, CALL, 4 * 2 + GO, -1], [-1, RETURN, RETURN, GO]],
            np.int32,
        ),
        calls_K2=np.array([[0, 1]], np.int32),
    )


def test_what_was_packed_is_what_is_unpacked() -> None:
    found = unpack(pack(automaton()))
    assert np.array_equal(found.classes_B, automaton().classes_B)
    assert np.array_equal(found.table_QC, automaton().table_QC)
    assert np.array_equal(found.calls_K2, automaton().calls_K2)


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [
        ("classes_B", 7, 3),  # the end's column is no byte's
        ("table_QC", (1, 2), 4 * 3 + GO),
        ("table_QC", (2, 3), 4 * 3 + GO),
        ("table_QC", (1, 1), 4 * 1 + CALL),
        ("table_QC", (1, 1), 3),
        ("table_QC", (0, 0), 2**31 - 2**4),
        ("calls_K2", (0, 0), 3),
        ("calls_K2", (0, 1), -1),
    ],
)
def test_an_automaton_that_names_what_it_has_not_is_refused(part: str, place, value: int) -> None:
    broken = automaton()
    getattr(broken, part)[place] = value
    with pytest.raises(ParameterError, match="a class, state or call that it has not"):
        unpack(pack(broken))


@pytest.mark.parametrize(("word", "value"), [(0, 2), (0, 0), (1, -4), (2, 2), (2, -1)])
def test_an_automaton_of_another_size_than_it_says_is_refused(word: int, value: int) -> None:
    words = pack(automaton())
    words[word] = value
    with pytest.raises(ParameterError, match="not the size that it says"):
        unpack(words)
    with pytest.raises(ParameterError, match="not the size that it says"):
        unpack(words[:word])
