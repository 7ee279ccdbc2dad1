"""Guides of ``lmformatenforcer``: which tokens of its tree a parser of ours lets through."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.guided.schema.regex import Regex
from octavo.guided.schema.utf8 import utf8
from octavo.guided.text_set import texts_of
from octavo.guided.token_automaton import AutomatonGuide, mask_of
from octavo_plugins.guided.lm_format_enforcer.library import (
    TokenEnforcer,
    TokenEnforcerTokenizerData,
)
from octavo_plugins.guided.lm_format_enforcer.parser import StateParser, States
from octavo_registry.guided import Constraint, GuideVocabulary


class Backend:
    """Enforces what can be written as a pattern; the library's reading of schemas is not used."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        self._vocabulary = vocabulary
        # Of tokens: the library's own way reads tokenizers of transformers, before version 5.
        self._tokens = TokenEnforcerTokenizerData(
            [
                (token, piece.decode("latin-1"), True)
                for token, piece in enumerate(vocabulary.token_bytes)
                if piece
            ],
            decoder=lambda tokens: "",  # for its log
            eos_token_id=vocabulary.vocab_size,  # it has one; ours are added to its masks
            use_bitmask=False,
            vocab_size=vocabulary.vocab_size,
        )

    def compile(self, constraint: Constraint) -> AutomatonGuide:
        """At once: the work is in the masks."""
        automaton = _Automaton(utf8(texts_of(constraint)), self._tokens, self._vocabulary)
        return AutomatonGuide(automaton, self._vocabulary)


class _Automaton:
    first = 0

    def __init__(
        self, texts: Regex, tokens: TokenEnforcerTokenizerData, vocabulary: GuideVocabulary
    ) -> None:
        self._states = States(texts)
        self._tree = tokens
        self._token_bytes = vocabulary.token_bytes
        self._end = vocabulary.vocab_size
        self._masks: dict[int, NDArray[np.int32]] = {}

    def step(self, state: int, token: int) -> int | None:
        """Along the token's bytes."""
        piece = self._token_bytes[token] if token < len(self._token_bytes) else None
        if not piece:
            return None
        place: StateParser | None = self._states[state]
        for byte in piece.decode("latin-1"):
            if place is not None:
                place = place.steps.get(byte)
        return None if place is None else place.number

    def mask(self, state: int) -> NDArray[np.int32]:
        """What the library finds, once a state."""
        if state not in self._masks:
            enforcer = TokenEnforcer(self._tree, self._states[state])
            found = np.array(enforcer.get_allowed_tokens([]).allowed_tokens, np.int64)
            # Where it finds nothing at all, it allows the end, which is not ours to take.
            self._masks[state] = mask_of(found[found != self._end], self._end)
        return self._masks[state]

    def is_complete(self, state: int) -> bool:
        """Whether the text may end."""
        return self._states[state].can_end()
