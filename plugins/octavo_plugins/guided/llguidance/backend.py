"""Guides of llguidance: compiled lazily, with limits on each step, outside the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.llguidance.grammar import grammar_of
from octavo_registry.guided import Constraint, GuideVocabulary

_TEXT = r'[^"\\\x00-\x1F\x7F]'
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_TEXT}{{1,{n}}}" for n in (2, 4, 7, 10, 16, 30)),
    f"{_TEXT}+",
]
"""Tokens by what they hold and their length: those that fit into a string, which may be bounded,
are then known at once. With the library's own, of 10 and 30, masks take a fifth more."""
LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own: some 20 ms of lexing and 3 ms of parsing a token at most."""


class Backend:
    """Enforces all kinds of constraints."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        if not vocabulary.stop_token_ids:
            raise UnsupportedConstraint(
                "llguidance needs a token that ends a text, and the model names none"
            )
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.stop_token_ids),
            slices=SLICES,
        )
        self._executor = Executor()

    def compile(self, constraint: Constraint) -> Guide:
        """Build the matcher that all states are copies of."""
        grammar = grammar_of(constraint, self._vocabulary.special_ids)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise UnsupportedConstraint(f"llguidance: {matcher.get_error().splitlines()[0]}")
        return Guide(matcher, frozenset(self._vocabulary.stop_token_ids), self._executor)


class _Tokens:
    """The vocabulary as the library reads it."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(
            {*vocabulary.special_ids.values(), *vocabulary.stop_token_ids}
        )
        texts = {token: text.encode() for text, token in vocabulary.special_ids.items()}
        self.tokens = [
            texts.get(token, b"") if each is None else each
            for token, each in enumerate(vocabulary.token_bytes)
        ]
        # Masks are as wide as this list; the width that the tokenizer is given does not count.
        self.tokens += [b""] * (vocabulary.vocab_size - len(self.tokens))
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class Executor:
    """The library's own threads; a process that only compiles has none."""

    @cached_property
    def threads(self) -> LLExecutor:
        """Made when the first masks are asked for together."""
        return LLExecutor()


class Guide:
    """A matcher at its beginning."""

    def __init__(
        self, matcher: LLMatcher, stop_token_ids: frozenset[int], executor: Executor
    ) -> None:
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self._executor = executor

    def start(self) -> State:
        """Copy it."""
        return State(self._matcher.deep_copy(), self._stop_token_ids, self._executor)


class State:
    """One matcher."""

    def __init__(
        self, matcher: LLMatcher, stop_token_ids: frozenset[int], executor: Executor
    ) -> None:
        self._matcher = matcher
        self._stop_token_ids = stop_token_ids
        self._executor = executor

    def allowed(self, token: int) -> bool:
        """Whether the token may come next."""
        if self.is_finished():  # the matcher has ended and takes nothing, not even a stop token
            return token in self._stop_token_ids
        is_valid = self._matcher.validate_tokens([token]) == 1
        self._raise_error()
        return is_valid

    def accept(self, token: int) -> bool:
        """Advance; a refused token would leave the matcher in error, so it is asked first."""
        is_taken = self._matcher.try_consume_tokens([token]) == 1
        self._raise_error()
        return is_taken

    def rollback(self, num_tokens: int) -> None:
        """Undo tokens."""
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise ValueError(self._matcher.get_error())

    def fork(self) -> State:
        """Copy the matcher."""
        return State(self._matcher.deep_copy(), self._stop_token_ids, self._executor)

    def forced(self) -> list[int]:
        """The tokens that the library finds to be without a choice."""
        tokens = self._matcher.compute_ff_tokens()
        self._raise_error()
        return tokens

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Fill in place."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._raise_error()

    def fill_bitmasks(
        self, states: Sequence[State], rows_MW: NDArray[np.int32]
    ) -> list[UnsupportedConstraint | None]:
        """In the library's own threads."""
        matchers = [(state._matcher, place) for place, state in enumerate(states)]
        size = rows_MW.shape[1] * rows_MW.itemsize
        self._executor.threads.unsafe_compute_mask_ptr(
            matchers, rows_MW.ctypes.data, size, len(states)
        )
        return [state._error() for state in states]

    def is_complete(self) -> bool:
        """Whether a stop token may come."""
        is_complete = self._matcher.is_accepting()
        self._raise_error()
        return is_complete

    def is_finished(self) -> bool:
        """Whether nothing but a stop token may come."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _raise_error(self) -> None:
        error = self._error()
        if error is not None:
            raise error

    def _error(self) -> UnsupportedConstraint | None:
        """What keeps the matcher from going on: a limit, most often."""
        if not self._matcher.is_error():
            return None
        return UnsupportedConstraint(f"llguidance: {self._matcher.get_error().splitlines()[0]}")
