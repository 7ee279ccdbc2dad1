"""Byte automata made by hand, which the engine walks ("walked") or masks on the host ("filled").

Grammars are the names of AUTOMATA.
"""

from __future__ import annotations

import string

import numpy as np
import torch

from octavo.guided.byte_automaton import ByteAutomatonGuide, ByteAutomatonGuideState, pack
from octavo_kernels.byte_automaton import TokenTable
from octavo_kernels.byte_automaton.reference import mask
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import CALL, GO, RETURN, ByteAutomaton, GuideVocabulary

OCTAVO_API = "1"
OPENING, CLOSING = "aeo", "nrt"
LETTERS = string.ascii_lowercase
END = -1


@hookimpl
def register_guided_backends(backends: LazyRegistry) -> None:
    for rank, name in enumerate(("Walked", "Filled")):
        target = f"automaton_guides:{name}"
        backends.add(name.lower(), target, keywords=("grammar",), rank=rank - 2, native=True)


def automaton(
    states: list[dict[str | int, tuple[int, int]]], calls: list[tuple[int, int]] = ()
) -> ByteAutomaton:
    """By state what bytes do, and the end (END); "" are those that are not named."""
    table = np.full((len(states), 257), -1, np.int32)
    for row, entries in zip(table, states, strict=True):
        if "" in entries:
            row[:256] = 4 * entries[""][1] + entries[""][0]
        for bytes_, (operation, number) in entries.items():
            columns = [256] if bytes_ == END else list(bytes_.encode())
            row[columns] = 4 * number + operation
    # A class for each kind of column of bytes.
    columns, classes = np.unique(table[:, :256], axis=1, return_inverse=True)
    return ByteAutomaton(
        classes_B=classes.reshape(-1).astype(np.uint8),
        table_QC=np.ascontiguousarray(np.column_stack([columns, table[:, 256]])),
        calls_K2=np.array(calls, np.int32).reshape(-1, 2),
    )


def nested(opening: str = OPENING) -> ByteAutomaton:
    """Letters, of which some open what others close; a blank or a full stop ends the text."""
    plain = "".join(set(LETTERS) - set(opening) - set(CLOSING))
    inside = {plain: (GO, 1), opening: (CALL, 1), CLOSING: (GO, 3)}
    return automaton(
        [
            {plain: (GO, 0), opening: (CALL, 0), " .": (GO, 4), END: (GO, 0)},
            inside,
            {opening: (GO, 1)},
            {"": (RETURN, 0), END: (RETURN, 0)},
            {END: (GO, 4)},
        ],
        [(2, 0), (2, 1)],
    )


def short(num_letters: int) -> ByteAutomaton:
    """So many letters, and nothing else."""
    steps = [{LETTERS: (GO, state + 1)} for state in range(num_letters)]
    return automaton([*steps, {END: (GO, num_letters)}])


AUTOMATA = {
    "nested": nested(),
    "others": nested("iu"),
    "short": short(11),
    "empty": short(0),
    "stuck": automaton([{LETTERS: (GO, 1)}, {}]),
}


class Walked:
    def __init__(self, vocabulary: GuideVocabulary) -> None:
        self.vocabulary = vocabulary

    def compile(self, constraint) -> ByteAutomatonGuide:
        return ByteAutomatonGuide(AUTOMATA[constraint.value], self.vocabulary)


class Filled(Walked):
    def compile(self, constraint) -> FilledGuide:
        return FilledGuide(super().compile(constraint))


class FilledGuide:
    """The same as any other guide: nobody sees that it is an automaton."""

    def __init__(self, inner: ByteAutomatonGuide) -> None:
        words = inner.vocabulary
        self.inner, self.words = inner, torch.from_numpy(pack(inner.automaton))
        self.tokens = TokenTable.of(
            words.token_bytes, words.stop_token_ids, words.vocab_size, "cpu"
        )

    def start(self) -> FilledState:
        return FilledState(self, self.inner.start())


class FilledState:
    def __init__(self, guide: FilledGuide, inner: ByteAutomatonGuideState) -> None:
        self.guide, self.inner = guide, inner

    def __getattr__(self, name: str):
        return getattr(self.inner, name)

    def fork(self) -> FilledState:
        return FilledState(self.guide, self.inner.fork())

    def fill_bitmask(self, row) -> None:
        place = self.inner.place
        row[:] = mask(self.guide.words, place.state, place.stack, self.guide.tokens).numpy()
