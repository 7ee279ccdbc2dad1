"""A set of texts as the library's parsers: a state is made when a text first gets there."""

from __future__ import annotations

from functools import cached_property

from octavo.guided.schema.regex import Regex
from octavo_plugins.guided.lm_format_enforcer.library import CharacterLevelParser


class StateParser(CharacterLevelParser):  # type: ignore[misc]
    """A state of a set of byte strings, made once; the library walks its tree of tokens by these.

    Bytes are characters here, the first 256, as in the tree: the library knows text only, and some
    tokens are pieces of a character.
    """

    def __init__(self, node: Regex, number: int, known: States) -> None:
        # The library's own would read the environment for options that mean nothing here, in half
        # the time that a mask takes.
        self._config = None
        self._node = node
        self._known = known
        self.number = number

    @cached_property
    def steps(self) -> dict[str, StateParser]:
        """Where each byte leads."""
        found: dict[str, StateParser] = {}
        for label, node in self._node.steps:
            parser = self._known.of(node)
            for low, high in label.ranges:
                found.update((chr(code), parser) for code in range(low, high + 1))
        return found

    @cached_property
    def _characters(self) -> frozenset[str]:
        return frozenset(self.steps)

    def add_character(self, new_character: str) -> StateParser:
        """The parser of the next state."""
        return self.steps[new_character]

    def get_allowed_characters(self) -> frozenset[str]:
        """The bytes that may come; a set is intersected with the tree's in less time than text."""
        return self._characters

    def can_end(self) -> bool:
        """Whether the text may end."""
        return self._node.nullable


class States:
    """The states of one set that were reached so far, by number; the first is that of no text."""

    def __init__(self, texts: Regex) -> None:
        self._parsers: list[StateParser] = []
        self._numbers: dict[Regex, int] = {}
        self.of(texts)

    def of(self, node: Regex) -> StateParser:
        """The state that stands for what may follow."""
        if node not in self._numbers:
            self._numbers[node] = len(self._parsers)
            self._parsers.append(StateParser(node, len(self._parsers), self))
        return self._parsers[self._numbers[node]]

    def __getitem__(self, number: int) -> StateParser:
        return self._parsers[number]
