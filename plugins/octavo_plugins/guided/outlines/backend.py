"""Guides of ``outlines_core``: an index leads from state to state, a token at a time."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary  # type: ignore[import-untyped]

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema.regex import Alt, Cat, Regex, Repeat, alt, cat, repeat
from octavo.guided.schema.regex_render import render_whole
from octavo.guided.text_set import texts_of
from octavo.guided.token_automaton import AutomatonGuide, mask_of
from octavo_registry.guided import Constraint, GuideVocabulary

LEVELS_OF_ANY = 1
"""Indexes are made in one piece; with another level an open object takes ten seconds."""


class Backend:
    """Enforces what can be written as a pattern; the library's reading of schemas is not used."""

    def __init__(self, vocabulary: GuideVocabulary) -> None:
        self._vocabulary = vocabulary
        tokens: defaultdict[bytes, list[int]] = defaultdict(list)
        for token, piece in enumerate(vocabulary.token_bytes):
            if piece:
                tokens[piece].append(token)
        # The library has one stop token; ours are added to its masks, so it gets an id of none.
        self._tokens = Vocabulary(vocabulary.vocab_size, dict(tokens))

    def compile(self, constraint: Constraint) -> AutomatonGuide:
        """Build the index: seconds, where many states allow much."""
        texts = texts_of(constraint, LEVELS_OF_ANY)
        # Without an end to hold on to, the index drops what goes on behind a text that might end;
        # with one, it cannot begin with a text that might be empty.
        pattern = rf"(?:{render_whole(_some_text(texts))})\z"
        try:
            index = Index(pattern, self._tokens)
        except ValueError as error:
            raise UnsupportedConstraint(f"outlines: {str(error).splitlines()[0]}") from error
        automaton = _Automaton(index, self._vocabulary.vocab_size, may_be_empty=texts.nullable)
        return AutomatonGuide(automaton, self._vocabulary)


def _some_text(node: Regex) -> Regex:
    """The texts but the empty one."""
    if not node.nullable:
        return node
    match node:
        case Cat(parts):
            rests = (parts[place + 1 :] for place in range(len(parts)))
            return alt(*(cat(_some_text(a), *b) for a, b in zip(parts, rests, strict=True)))
        case Alt(choices):
            return alt(*map(_some_text, choices))
        case Repeat(part, _, high):
            return cat(_some_text(part), repeat(part, 0, None if high is None else high - 1))
    raise AssertionError("only plain sets can be written")


class _Automaton:
    first = -1
    """Before any token. The index's own first state may be met again, where no text may end."""

    def __init__(self, index: Index, end: int, *, may_be_empty: bool) -> None:
        self._index = index
        self._end = end
        self._may_be_empty = may_be_empty
        self._begin: int = index.get_initial_state()

    def step(self, state: int, token: int) -> int | None:
        """As the index says."""
        if token == self._end:
            return None
        found: int | None = self._index.get_next_state(self._place(state), token)
        return found

    def mask(self, state: int) -> NDArray[np.int32]:
        """The tokens of the index but the library's own stop token."""
        found = np.array(self._index.get_allowed_tokens(self._place(state)) or [], np.int64)
        return mask_of(found[found != self._end], self._end)

    def is_complete(self, state: int) -> bool:
        """Whether it is final."""
        return self._may_be_empty if state == self.first else self._index.is_final_state(state)

    def _place(self, state: int) -> int:
        return self._begin if state == self.first else state
