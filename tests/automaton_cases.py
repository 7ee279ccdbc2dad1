"""What tests of byte automata need: walks beside llguidance, and constraints to walk through."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everyday_schemas import CLASSES, SCHEMAS
from guided_features import CASES
from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import AutomatonState, AutomatonWalker
from octavo.guided.schema import core_schema
from octavo.testing.guided import bits_of
from octavo.testing.guided_samples import samples
from octavo_plugins.guided.automaton.backend import Backend as Automaton
from octavo_plugins.guided.automaton.keywords import KEYWORDS
from octavo_plugins.guided.llguidance.backend import Backend as Llguidance
from octavo_registry.guided import Constraint, GuideVocabulary

_BOUNDS = re.compile('"(exclusive)?M(in|ax)imum"|"multipleOf"', re.IGNORECASE)
_NUMBER = re.compile(rb"(^|[:,[ \n])-?[0-9.]*$")
STOP = 256
BYTES = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(256)), None],
    special_ids={"<end>": STOP},
    stop_token_ids=(STOP,),
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)
FEW_BYTES = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(128)), None],
    special_ids={"<end>": 128},
    stop_token_ids=(128,),
    vocab_size=129,
    encode=lambda text: list(text.encode("ascii", errors="replace")),
)
"""Only ASCII, so that other characters cannot be written."""
STRUCTURE = b'"}],:{ 01'
"""Bytes that lead a random walk on; among all others it would stay in the first string."""
USUAL = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "name": {"type": "string", "maxLength": 100},
        "description": {"type": "string", "maxLength": 500},
        "price": {"type": "number", "minimum": 0},
        "in_stock": {"type": "boolean"},
        "created": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["book", "film", "song"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 10},
        "note": {"type": ["string", "null"]},
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "minLength": 1, "maxLength": 30},
                    "count": {"type": "integer"},
                },
                "required": ["sku", "count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "name", "price", "kind", "parts"],
    "additionalProperties": False,
}


def json_of(schema: Any) -> Constraint:
    """What a backend gets of a user's schema."""
    return Constraint(kind="json", value=core_schema(schema).schema)


def constraints(features: Sequence[str]) -> Iterator[tuple[str, Constraint]]:
    """By name: the table of features, everyday schemas, and what backends are checked with."""
    for case in CASES:
        if case.feature in features and case.feature in KEYWORDS:
            yield case.name, Constraint(kind="json", value=case.schema)
    for name, schema in SCHEMAS.items():
        yield name, json_of(schema)
    for model in CLASSES:
        yield model.__name__, json_of(model.model_json_schema())
    for sample in samples(("regex", "choice", *features)):
        if sample.constraint.kind in KEYWORDS:
            yield sample.name, sample.constraint
    yield "a usual schema", json_of(USUAL)


def walker(constraint: Constraint) -> AutomatonWalker:
    return AutomatonWalker(Automaton.automaton(constraint))


def accepts(automaton: AutomatonWalker, text: str) -> bool:
    place = automaton.walk(AutomatonState(), text.encode())
    return place is not None and automaton.may_end(place)


def following(automaton: AutomatonWalker, place: AutomatonState) -> list[int]:
    """The bytes that may come."""
    return [byte for byte in range(256) if automaton.walk(place, bytes([byte])) is not None]


class Comparison:
    """Masks of one vocabulary by automata and by llguidance, along random walks of both.

    In numbers with bounds or multiples they are not compared: llguidance leaves out some zeros
    that are right (``0.30`` and ``-0`` beside some bounds), and automata others.
    """

    def __init__(self, words: GuideVocabulary) -> None:
        self._words = words
        self._ours, self._theirs = Automaton(words), Llguidance(words)
        self.num_states = 0

    def theirs(self, constraint: Constraint) -> Any:
        """The guide of llguidance."""
        return self._theirs.compile(constraint)

    def first_difference(self, constraint: Constraint, *, walks: int = 4, tokens: int = 50) -> str:
        """Where one of them allows a token that the other does not; empty if they agree."""
        ours, theirs = self._ours.compile(constraint), self._theirs.compile(constraint)
        has_bounds = _BOUNDS.search(json.dumps(constraint.value)) is not None
        for seed in range(walks):
            chance = random.Random(seed)
            states, text = (ours.start(), theirs.start()), b""
            for _ in range(tokens):
                masks = [self._mask(state) for state in states]
                self.num_states += 1
                in_number = has_bounds and _NUMBER.search(text) is not None
                if not in_number and not np.array_equal(*masks):
                    more = [self._shown(first & ~second) for first, second in (masks, masks[::-1])]
                    return f"after {text!r}: ours alone {more[0]}, theirs alone {more[1]}"
                token = self._chosen(masks[0] & masks[1], chance)
                if token is None:
                    break
                for state in states:
                    assert state.accept(token)
                text += self._words.token_bytes[token] or b""
        return ""

    def _mask(self, state: Any) -> np.ndarray:
        size = self._words.vocab_size
        if state.is_finished():  # what llguidance gives then has every stop token and nothing else
            bits = np.zeros(size, bool)
            bits[list(self._words.stop_token_ids)] = True
            return bits
        row = np.zeros((size + 31) // 32, np.int32)
        state.fill_bitmask(row)
        bits = bits_of(row)[:size]
        if bits.sum() == 1:  # llguidance leaves out other spellings of a text without a choice
            bits = np.array([state.allowed(token) for token in range(size)])
        return bits

    def _chosen(self, mask: np.ndarray, chance: random.Random) -> int | None:
        mask[list(self._words.stop_token_ids)] = False
        tokens = np.flatnonzero(mask).tolist()
        leading = [t for t in tokens if (self._words.token_bytes[t] or b"x")[0] in STRUCTURE]
        if leading and chance.random() < 0.6:
            return chance.choice(leading)
        return chance.choice(tokens) if tokens else None

    def _shown(self, mask: np.ndarray) -> list[bytes | None]:
        listed = self._words.token_bytes
        return [listed[token] for token in np.flatnonzero(mask)[:6].tolist() if token < len(listed)]


def refusal(constraint: Constraint) -> str:
    """Why it is no automaton; empty if it is one."""
    try:
        Automaton.automaton(constraint)
    except UnsupportedConstraint as error:
        return str(error)
    return ""
