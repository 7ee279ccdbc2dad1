"""Guides of llguidance: compiled lazily, with limits on each step, outside the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

        def matcher() -> LLMatcher:
            return LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)

        guide = Guide(matcher, frozenset(self._vocabulary.stop_token_ids), self._executor)
        if (error := guide.start().error()) is not None:
            raise error
        return guide


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
    """A matcher at its beginning.

    The states that are copies of it share its lexer. When one of them goes beyond a limit of the
    lexer, all are in error, and so would be all that begin later.
    """

    def __init__(
        self,
        matcher: Callable[[], LLMatcher],
        stop_token_ids: frozenset[int],
        executor: Executor,
    ) -> None:
        self.matcher = matcher
        """Makes one with a lexer of its own."""
        self.stop_token_ids = stop_token_ids
        self.executor = executor
        self._first = matcher()

    def start(self) -> State:
        """Copy it."""
        return State(self, self._first.deep_copy(), [])

    def renew(self) -> None:
        """Leave the matcher, whose lexer is beyond a limit, to the states that have it."""
        self._first = self.matcher()


class State:
    """One matcher, and the tokens that it has taken.

    In error it is made anew, with a lexer of its own: if it is in error again, then by itself.
    """

    def __init__(self, guide: Guide, matcher: LLMatcher, tokens: list[int]) -> None:
        self._guide = guide
        self._matcher = matcher
        self._tokens = tokens

    def allowed(self, token: int) -> bool:
        """Whether the token may come next."""
        if self.is_finished():  # the matcher has ended and takes nothing, not even a stop token
            return token in self._guide.stop_token_ids
        num_valid = self._matcher.validate_tokens([token])
        if self._is_made_anew():
            num_valid = self._matcher.validate_tokens([token])
        self._raise_error()
        return num_valid == 1

    def accept(self, token: int) -> bool:
        """Advance; a refused token would leave the matcher in error, so it is asked first."""
        num_taken = self._matcher.try_consume_tokens([token])
        if self._is_made_anew():
            num_taken = self._matcher.try_consume_tokens([token])
        self._raise_error()
        if num_taken == 1:
            self._tokens.append(token)
        return num_taken == 1

    def rollback(self, num_tokens: int) -> None:
        """Undo tokens."""
        if not num_tokens:
            return
        if not self._matcher.rollback(num_tokens):
            raise ValueError(self._matcher.get_error())
        del self._tokens[len(self._tokens) - num_tokens :]

    def fork(self) -> State:
        """Copy the matcher."""
        return State(self._guide, self._matcher.deep_copy(), list(self._tokens))

    def forced(self) -> list[int]:
        """The tokens that the library finds to be without a choice."""
        return self._matcher.compute_ff_tokens()

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Fill in place."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._is_made_anew():
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._raise_error()

    def fill_bitmasks(
        self, states: Sequence[State], rows_MW: NDArray[np.int32]
    ) -> list[UnsupportedConstraint | None]:
        """In the library's own threads; what is in error then, again and alone."""
        matchers = [(state._matcher, place) for place, state in enumerate(states)]
        size = rows_MW.shape[1] * rows_MW.itemsize
        self._guide.executor.threads.unsafe_compute_mask_ptr(
            matchers, rows_MW.ctypes.data, size, len(states)
        )
        for state, row in zip(states, rows_MW, strict=True):
            if state._is_made_anew():
                state._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        return [state.error() for state in states]

    def is_complete(self) -> bool:
        """Whether a stop token may come."""
        return self._matcher.is_accepting()

    def is_finished(self) -> bool:
        """Whether nothing but a stop token may come."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def error(self) -> UnsupportedConstraint | None:
        """What keeps the matcher from going on: a limit, most often."""
        if not self._matcher.is_error():
            return None
        return UnsupportedConstraint(f"llguidance: {self._matcher.get_error().splitlines()[0]}")

    def _is_made_anew(self) -> bool:
        """Where it is in error: a matcher with a lexer of its own that has taken its tokens."""
        if not self._matcher.is_error():
            return False
        self._guide.renew()
        self._matcher = self._guide.matcher()
        return self._matcher.try_consume_tokens(self._tokens) == len(self._tokens)

    def _raise_error(self) -> None:
        error = self.error()
        if error is not None:
            raise error
