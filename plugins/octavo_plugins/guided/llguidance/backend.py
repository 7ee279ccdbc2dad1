"""Guides of llguidance: compiled lazily, with limits on each step, outside the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

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
_Answer = TypeVar("_Answer")


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

        def make() -> LLMatcher:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
            if matcher.is_error():
                raise _error_of(matcher)
            return matcher

        return Guide(make, frozenset(self._vocabulary.stop_token_ids), self._executor)


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


class _Family:
    """A matcher at its beginning; its copies share a lexer, and at a limit of that all fail."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.num_copies = 0
        self.is_at_limit = False

    def copy(self, matcher: LLMatcher | None = None) -> LLMatcher:
        """Copy the matcher of the beginning, or of one of the family."""
        self.num_copies += 1
        return (matcher or self._matcher).deep_copy()


class Guide:
    """Makes states, which share a lexer as long as it is within its limits."""

    def __init__(
        self, make: Callable[[], LLMatcher], stop_token_ids: frozenset[int], executor: Executor
    ) -> None:
        self.stop_token_ids = stop_token_ids
        self.executor = executor
        self._make = make
        self._family = self.new_family()

    def new_family(self) -> _Family:
        """With a lexer of its own."""
        return _Family(self._make())

    def shared_family(self) -> _Family:
        """The family of new states, and of those that must leave theirs; never one at a limit."""
        if self._family.is_at_limit:
            self._family = self.new_family()
        return self._family

    def start(self) -> State:
        """Copy the matcher."""
        family = self.shared_family()
        return State(self, family, family.copy(), [])


class State:
    """One matcher, and the tokens that it has taken.

    In error by a lexer that others have used too, it is made anew with a fresh one, which all such
    states share: making one takes a compile. Who has brought a lexer to its limit will do so again,
    and only then gets one of its own, in which it fails alone. One that has had the lexer for
    itself fails at once, as where a guide is tried before it is served.
    """

    def __init__(
        self, guide: Guide, family: _Family, matcher: LLMatcher, tokens: list[int]
    ) -> None:
        self._guide = guide
        self._family = family
        self._matcher = matcher
        self._tokens = tokens

    def allowed(self, token: int) -> bool:
        """Whether the token may come next."""
        if self.is_finished():  # the matcher has ended and takes nothing, not even a stop token
            return token in self._guide.stop_token_ids
        return self._takes(lambda matcher: matcher.validate_tokens([token]))

    def accept(self, token: int) -> bool:
        """Advance; a refused token would leave the matcher in error, so it is asked first."""
        is_taken = self._takes(lambda matcher: matcher.try_consume_tokens([token]))
        if is_taken:
            self._tokens.append(token)
        return is_taken

    def rollback(self, num_tokens: int) -> None:
        """Undo tokens; a matcher of a grammar with ``max_tokens`` or ``stop`` cannot, so a new one
        takes those that are left.
        """
        if not num_tokens:
            return
        if num_tokens > len(self._tokens):
            raise ValueError("the matcher has not taken so many tokens")
        del self._tokens[len(self._tokens) - num_tokens :]
        if not self._matcher.is_error() and not self._matcher.rollback(num_tokens):
            self._matcher = self._family.copy()
            self._matcher.try_consume_tokens(self._tokens)
        self._asked(lambda matcher: None)

    def fork(self) -> State:
        """Copy the matcher."""
        return State(
            self._guide, self._family, self._family.copy(self._matcher), list(self._tokens)
        )

    def forced(self) -> list[int]:
        """The tokens that the library finds to be without a choice."""
        return self._asked(LLMatcher.compute_ff_tokens)

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Fill in place."""
        self._asked(lambda matcher: matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes))

    def fill_bitmasks(
        self, states: Sequence[State], rows_MW: NDArray[np.int32]
    ) -> list[Exception | None]:
        """In the library's own threads; what is in error then, once more and alone."""
        matchers = [(state._matcher, place) for place, state in enumerate(states)]
        size = rows_MW.shape[1] * rows_MW.itemsize
        self._guide.executor.threads.unsafe_compute_mask_ptr(
            matchers, rows_MW.ctypes.data, size, len(states)
        )
        return [
            state._filled_again(row) if state._matcher.is_error() else None
            for state, row in zip(states, rows_MW, strict=True)
        ]

    def is_complete(self) -> bool:
        """Whether a stop token may come."""
        return self._asked(LLMatcher.is_accepting)

    def is_finished(self) -> bool:
        """Whether nothing but a stop token may come."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _filled_again(self, row: NDArray[np.int32]) -> Exception | None:
        try:
            self.fill_bitmask(row)
        except UnsupportedConstraint as error:
            return error
        return None

    def _takes(self, token: Callable[[LLMatcher], int]) -> bool:
        """Whether it is taken: one, of one."""
        matcher = self._matcher
        if self._asked(token) == 1:
            return True
        if self._matcher.is_stopped():
            return False
        # At a limit of the lexer all tokens are refused, without an error; a mask would fail.
        self._asked(LLMatcher.compute_bitmask)
        return self._matcher is not matcher and self._asked(token) == 1

    def _asked(self, question: Callable[[LLMatcher], _Answer]) -> _Answer:
        """The matcher's answer; raises what keeps it from going on: a limit, most often."""
        if not self._family.is_at_limit:
            answer = question(self._matcher)
            if not self._matcher.is_error():
                return answer
            self._family.is_at_limit = True
        for renewed in (self._guide.shared_family, self._guide.new_family):
            if self._family.num_copies == 1:
                break
            self._family = renewed()
            self._matcher = self._family.copy()
            self._matcher.try_consume_tokens(self._tokens)
            answer = question(self._matcher)
            if not self._matcher.is_error():
                return answer
            self._family.is_at_limit = True
        raise _error_of(self._matcher)


def _error_of(matcher: LLMatcher) -> UnsupportedConstraint:
    return UnsupportedConstraint(f"llguidance: {matcher.get_error().splitlines()[0]}")
