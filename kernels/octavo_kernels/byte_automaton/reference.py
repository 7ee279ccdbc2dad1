"""What byte automata allow and where they lead. Axis suffixes as in the package's docstring."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.byte_automaton.tables import MOST_DEPTH, MOST_HOPS, AutomatonStates, TokenTable

HEADER_WORDS, CLASS_WORDS = 4, 64
GO, CALL = 0, 1
UNKNOWN, NOWHERE = -2, -1

Place = tuple[int, tuple[int, ...]]
"""A state and the stack, first pushed first."""


class Automaton:
    """A packed automaton, from its header on; what follows it is not looked at."""

    def __init__(self, words_W: Tensor) -> None:
        num_states, self.num_columns, num_calls = words_W[:3].tolist()
        sizes = (HEADER_WORDS, CLASS_WORDS, num_states * self.num_columns, 2 * num_calls)
        _, classes, table, calls = words_W[: sum(sizes)].split(sizes)
        self.classes_B = classes.view(torch.uint8)
        self.table_QC = table.view(num_states, self.num_columns).numpy()
        self.calls_K2 = calls.view(num_calls, 2).numpy()

    def enter(self, place: Place, column: int) -> Place | None:
        """Where a byte of that class leads to, if it may come; the last class is the end."""
        state, stack = place
        for _ in range(MOST_HOPS + 1):
            entry = int(self.table_QC[state, column])
            number, operation = entry >> 2, entry & 3
            if entry < 0:
                return None
            if operation == GO:
                return number, stack
            if operation == CALL:
                if len(stack) == MOST_DEPTH:
                    return None
                state, behind = self.calls_K2[number].tolist()
                stack = (*stack, behind)
            elif not stack:
                return None
            else:
                *rest, state = stack
                stack = tuple(rest)
        return None

    def walk(self, place: Place, data: bytes) -> Place | None:
        """The place behind these bytes."""
        found: Place | None = place
        for column in self.classes_B[torch.tensor(list(data), dtype=torch.int64)].tolist():
            if found is not None:
                found = self.enter(found, column)
        return found

    def may_end(self, place: Place) -> bool:
        """Whether the text may end there."""
        return self.enter(place, -1) is not None


class Places:
    """The places that texts come to from one, by number, and where bytes lead from each.

    Most texts share theirs: what a class of bytes does at a place is found out once.
    """

    def __init__(self, automaton: Automaton, first: Place) -> None:
        self._automaton = automaton
        self._places = [first]
        self._numbers = {first: 0}
        self._next_PC = self._rows(1)

    def next(self, places_T: Tensor, classes_T: Tensor) -> Tensor:
        """Where each byte leads from its place; below 0, nowhere."""
        keys_T = places_T * self._automaton.num_columns + classes_T
        next_T = self._next_PC.view(-1).index_select(0, keys_T)
        if (next_T == UNKNOWN).any():
            self._find(keys_T)
            next_T = self._next_PC.view(-1).index_select(0, keys_T)
        return next_T

    def _find(self, keys_T: Tensor) -> None:
        asked = torch.zeros(self._next_PC.numel(), dtype=torch.bool)
        asked[keys_T] = True
        asked &= self._next_PC.view(-1) == UNKNOWN
        for key in asked.nonzero().view(-1).tolist():
            place, column = divmod(key, self._automaton.num_columns)
            found = self._automaton.enter(self._places[place], column)
            self._next_PC.view(-1)[key] = NOWHERE if found is None else self._number(found)
        missing = len(self._places) - len(self._next_PC)
        self._next_PC = torch.cat([self._next_PC, self._rows(missing)])

    def _number(self, place: Place) -> int:
        number = self._numbers.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(place)
        return number

    def _rows(self, count: int) -> Tensor:
        return torch.full((count, self._automaton.num_columns), UNKNOWN)


def allowed(automaton: Automaton, place: Place, tokens: TokenTable) -> Tensor:
    """Whether each token may come there: all of them at once, byte after byte."""
    allowed_V = torch.zeros(tokens.vocab_size, dtype=torch.bool)
    starts_V, ends_V = tokens.starts_V1[:-1], tokens.starts_V1[1:]
    ids_T = (starts_V < ends_V).nonzero().view(-1)
    at_T, ends_T, places_T = starts_V[ids_T], ends_V[ids_T], torch.zeros_like(ids_T)
    places, classes_B = Places(automaton, place), automaton.classes_B.long()
    while len(ids_T):
        bytes_T = tokens.bytes_N.index_select(0, at_T).int()
        places_T = places.next(places_T, classes_B.index_select(0, bytes_T))
        lives_T, at_T = places_T >= 0, at_T + 1
        allowed_V[ids_T[lives_T & (at_T == ends_T)]] = True
        left = (lives_T & (at_T < ends_T)).nonzero().view(-1)
        # index_select takes a quarter of the time of x[left].
        ids_T, at_T, ends_T, places_T = (
            x.index_select(0, left) for x in (ids_T, at_T, ends_T, places_T)
        )
    if automaton.may_end(place):
        allowed_V[tokens.stops_K.long()] = True
    return allowed_V


def mask(automaton_W: Tensor, state: int, stack: tuple[int, ...], tokens: TokenTable) -> Tensor:
    """The tokens that may come, as bits of int32 words."""
    allowed_V = allowed(Automaton(automaton_W), (state, stack), tokens)
    bits = np.zeros(-(-len(allowed_V) // 32) * 32, np.bool_)
    bits[: len(allowed_V)] = allowed_V.numpy()
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def fill_masks(
    slots_R: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
    masks_RW: Tensor,
    mask_rows_R: Tensor,
) -> None:
    """Write the masks of rows with an automaton."""
    for row, slot in enumerate(slots_R.tolist()):
        at, state, stack = _row(states, slot)
        mask_rows_R[row] = row if at else -1
        if at:
            masks_RW[row] = mask(pool_W[at:], state, stack, tokens) if state >= 0 else 0


def walk_(
    slots_R: Tensor,
    tokens_R: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
    behind: tuple[AutomatonStates, Tensor] | None,
) -> None:
    """Go where the sampled tokens lead."""
    origin, lines_R = (states, slots_R) if behind is None else behind
    for slot, line, token in zip(
        slots_R.tolist(), lines_R.tolist(), tokens_R.tolist(), strict=True
    ):
        at, (_, state, stack) = int(states.at_S[slot]), _row(origin, line)
        if at:
            _put(states, slot, *_behind(Automaton(pool_W[at:]), state, stack, token, tokens))


def walk_drafts(
    slots_R: Tensor,
    ahead_R: Tensor,
    tokens_SL: Tensor,
    num_tokens_S: Tensor,
    states: AutomatonStates,
    pool_W: Tensor,
    tokens: TokenTable,
    lines: AutomatonStates,
) -> None:
    """Go where drafts lead, from each row's slot anew."""
    for row, (slot, ahead) in enumerate(zip(slots_R.tolist(), ahead_R.tolist(), strict=True)):
        at, state, stack = _row(states, slot)
        lines.at_S[row] = at
        if at:
            first = int(num_tokens_S[slot])
            drafts = tokens_SL[slot, first : first + ahead].tolist()
            for token in (*drafts, *[-1] * (ahead - len(drafts))):
                state, stack = _behind(Automaton(pool_W[at:]), state, stack, token, tokens)
            _put(lines, row, state, stack)


def _behind(
    automaton: Automaton, state: int, stack: tuple[int, ...], token: int, tokens: TokenTable
) -> tuple[int, tuple[int, ...]]:
    """State and stack behind a token."""
    if state < 0:
        return state, stack
    found: Place | None = None
    if token in tokens.stops_K.tolist():
        found = (state, stack) if automaton.may_end((state, stack)) else None
    elif data := tokens.data(token):
        found = automaton.walk((state, stack), data)
    return (NOWHERE, stack) if found is None else found


def _put(states: AutomatonStates, line: int, state: int, stack: tuple[int, ...]) -> None:
    states.state_S[line], states.depth_S[line] = state, len(stack)
    states.stack_SD[line, : len(stack)] = torch.tensor(stack, dtype=torch.int32)


def _row(states: AutomatonStates, slot: int) -> tuple[int, int, tuple[int, ...]]:
    """Where the row's automaton begins, its state and its stack."""
    stack = states.stack_SD[slot, : int(states.depth_S[slot])].tolist()
    return int(states.at_S[slot]), int(states.state_S[slot]), tuple(stack)
