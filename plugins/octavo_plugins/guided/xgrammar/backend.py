"""Guides of xgrammar: much of the work on masks is done when a guide is compiled."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, VocabType

from octavo.errors import UnsupportedConstraint
from octavo_plugins.guided.xgrammar.grammar import grammar_of
from octavo_registry.guided import Constraint, GuideVocabulary

_SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+: ")
"""In the library's own code, before each of its messages."""


class Backend:
    """Enforces JSON, patterns and choices."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        tokens = _Tokens(vocabulary)
        self._tokens = tokens
        info = TokenizerInfo(
            [each or b"" for each in vocabulary.token_bytes],  # an empty one matches no text
            VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.stop_token_ids),
        )
        self._compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> Guide:
        """Work out what can be known about masks beforehand."""
        grammar = grammar_of(constraint)
        try:
            return Guide(self._compiler.compile_grammar(grammar), self._tokens)
        except RuntimeError as error:
            reason = _SOURCE_PLACE.sub("", str(error).splitlines()[0])
            raise UnsupportedConstraint(f"xgrammar: {reason}") from error


class _Tokens:
    """Which tokens there are, as masks."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        texts = [token for token, each in enumerate(vocabulary.token_bytes) if each]
        self.stops_W = self._mask(vocabulary.vocab_size, vocabulary.stop_token_ids)
        self.known_W = self._mask(vocabulary.vocab_size, texts) | self.stops_W

    def knows(self, token: int) -> bool:
        """Whether it is a text or an end."""
        return _has(self.known_W, token)

    def _mask(self, vocab_size: int, tokens: list[int] | tuple[int, ...]) -> NDArray[np.int32]:
        bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


class Guide:
    """A compiled grammar."""

    def __init__(self, compiled: CompiledGrammar, tokens: _Tokens) -> None:
        self._compiled = compiled
        self._tokens = tokens

    def start(self) -> State:
        """A matcher of its own."""
        return State(GrammarMatcher(self._compiled), self._tokens)


class State:
    """One matcher, and the mask of its next token when somebody has asked for it."""

    def __init__(self, matcher: GrammarMatcher, tokens: _Tokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._mask_W: NDArray[np.int32] | None = None

    def allowed(self, token: int) -> bool:
        """Look it up in the mask."""
        return _has(self._mask(), token)

    def accept(self, token: int) -> bool:
        """Advance; the library would warn of tokens that are no text."""
        if not self._tokens.knows(token) or not self._matcher.accept_token(token):
            return False
        self._mask_W = None
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo tokens."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._mask_W = None

    def fork(self) -> State:
        """Copy the matcher."""
        return State(self._matcher.fork(), self._tokens)

    def forced(self) -> list[int]:
        """None: the library knows texts without a choice, and not the model's tokens of them."""
        return []

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Copy the mask."""
        row[:] = self._mask()

    def is_complete(self) -> bool:
        """Whether a stop token may come."""
        return self._matcher.is_completed()

    def is_finished(self) -> bool:
        """Whether nothing but a stop token may come; only the mask tells."""
        return self.is_complete() and not (self._mask() & ~self._tokens.stops_W).any()

    def _mask(self) -> NDArray[np.int32]:
        if self._mask_W is None:
            self._mask_W = self._tokens.stops_W.copy()
            if not self._matcher.is_terminated():
                self._matcher.fill_next_token_bitmask(self._mask_W)
                self._mask_W &= self._tokens.known_W  # bits beyond the tokens are set too
        return self._mask_W


def _has(mask_W: NDArray[np.int32], token: int) -> bool:
    word, bit = divmod(token, 32)
    return 0 <= word < len(mask_W) and bool(int(mask_W[word]) >> bit & 1)
