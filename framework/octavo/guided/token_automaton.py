"""Guides of backends that see a text as states: numbers, between which tokens lead."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_registry.guided import GuideVocabulary


class TokenAutomaton(Protocol):
    """What a backend makes of one constraint; stop tokens are none of its business."""

    first: int
    """The state of no text."""

    def step(self, state: int, token: int) -> int | None:
        """The state behind a token; None where it may not come."""
        ...

    def mask(self, state: int) -> NDArray[np.int32]:
        """The tokens that may come, as bits."""
        ...

    def is_complete(self, state: int) -> bool:
        """Whether the text may end."""
        ...


def mask_of(tokens: NDArray[np.int64], vocab_size: int) -> NDArray[np.int32]:
    """The mask that allows these."""
    bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class AutomatonGuide:
    """A guide made of an automaton."""

    def __init__(self, automaton: TokenAutomaton, vocabulary: GuideVocabulary) -> None:
        self.automaton = automaton
        self.stop_token_ids = vocabulary.stop_token_ids

    def start(self) -> TokenAutomatonState:
        """In the first state."""
        return TokenAutomatonState(self, [self.automaton.first])


class TokenAutomatonState:
    """The states that a sequence went through; a stop token leaves it where it is."""

    def __init__(self, guide: AutomatonGuide, states: list[int]) -> None:
        self._guide = guide
        self._states = states

    def allowed(self, token: int) -> bool:
        """Whether it leads somewhere, or may end the text."""
        return self._behind(token) is not None

    def accept(self, token: int) -> bool:
        """Go where the token leads."""
        state = self._behind(token)
        if state is None:
            return False
        self._states.append(state)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Go back."""
        del self._states[len(self._states) - num_tokens :]

    def fork(self) -> TokenAutomatonState:
        """A copy; states are numbers."""
        return TokenAutomatonState(self._guide, list(self._states))

    def forced(self) -> list[int]:
        """None: which of a text's spellings is the model's own, the automaton does not know."""
        return []

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """The state's tokens, and stop tokens where the text may end."""
        row[:] = self._guide.automaton.mask(self._states[-1])
        if self.is_complete():
            for token in self._guide.stop_token_ids:
                row.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def is_complete(self) -> bool:
        """Whether the text may end."""
        return self._guide.automaton.is_complete(self._states[-1])

    def is_finished(self) -> bool:
        """Whether it must."""
        return self.is_complete() and not self._guide.automaton.mask(self._states[-1]).any()

    def _behind(self, token: int) -> int | None:
        state = self._states[-1]
        if token in self._guide.stop_token_ids:
            return state if self.is_complete() else None
        return self._guide.automaton.step(state, token)
