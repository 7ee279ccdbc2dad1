"""Byte automata: what they admit, their masks beside llguidance's, their ends and their limits."""

from __future__ import annotations

import json
import random
import time
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

import sample_tokenizers
from automaton_cases import (
    BYTES,
    FEW_BYTES,
    USUAL,
    Comparison,
    accepts,
    constraints,
    following,
    json_of,
    refusal,
    walker,
)
from guided_features import CASES, Case
from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import AutomatonState, AutomatonWalker
from octavo.guided.schema import FEATURES, core_schema
from octavo.guided.vocabulary import read_vocabulary
from octavo.testing.guided import check_guided_backend
from octavo_plugins.guided.automaton.backend import Backend
from octavo_plugins.guided.automaton.keywords import KEYWORDS
from octavo_plugins.guided.llguidance.keywords import KEYWORDS as THEIRS
from octavo_registry.guided import MOST_DEPTH, AutomatonBackend, Constraint, GuideVocabulary
from random_schemas import admitted, schemas

COMPARISON = Comparison(BYTES)
EVERY = dict(constraints(THEIRS))


def test_the_allow_list_names_features_that_there_are_and_that_are_tried() -> None:
    features = set(KEYWORDS) - {"json", "regex", "choice"}
    assert features <= set(FEATURES)
    assert features <= {case.feature for case in CASES}
    assert isinstance(Backend, AutomatonBackend)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.feature in KEYWORDS], ids=lambda case: case.name
)
def test_what_a_feature_admits_is_accepted_and_nothing_else(case: Case) -> None:
    automaton = walker(Constraint(kind="json", value=case.schema))
    assert [text for text in case.valid if not accepts(automaton, text)] == []
    assert [text for text in case.invalid if accepts(automaton, text)] == []


def test_it_is_a_guided_backend() -> None:
    checks = check_guided_backend("it", Backend, KEYWORDS, native=True, automata=True)
    assert [each for each in checks if not each.passed] == []


@pytest.mark.parametrize("name", EVERY)
def test_its_masks_are_those_of_llguidance(name: str) -> None:
    assert COMPARISON.first_difference(EVERY[name]) == ""


@pytest.mark.parametrize(
    "name", ["date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uri", "uuid"]
)
def test_formats_are_those_of_llguidance(name: str) -> None:
    schema = {"type": "string", "format": name}
    assert COMPARISON.first_difference(json_of(schema)) == ""


CHARS = "a_é日٣ⅷ²ⓐ\u200d\u0301\x85\ufeff\u3000 \n-‿€"
PATTERNS = (
    *(r"[^\s,]+(, ?[^\s,]+)*", ".{1,40}", "(yes|no|日本)+", "é?[a-ü]{2}", "a{3,}b{0,2}"),
    *("x*y|(xx)+", "(?P<year>[0-9]{4})", "a+?b", r"\x41"),
)
LETTERS = (r"\d{4}-\d{2}", r"\w+ \S*", r"\p{Lu}\p{Ll}*", r"[\d.]+%?", r"[^\W_]{2,}@\w+")
"""What letters there are depends on the year of a library's tables, but in ASCII."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_those_of_llguidance(pattern: str) -> None:
    assert COMPARISON.first_difference(Constraint(kind="regex", value=pattern)) == ""


@pytest.mark.parametrize("pattern", LETTERS)
def test_patterns_with_classes_of_letters_are_those_of_llguidance(pattern: str) -> None:
    constraint = Constraint(kind="regex", value=pattern)
    assert Comparison(FEW_BYTES).first_difference(constraint) == ""


@pytest.mark.parametrize("letter", ["d", "w", "s", "D", "W", "S"])
def test_classes_have_letters_of_all_scripts(letter: str) -> None:
    constraint = Constraint(kind="regex", value=f"\\{letter}")
    automaton, theirs = walker(constraint), COMPARISON.theirs(constraint)
    for char in CHARS:
        state = theirs.start()
        taken = all(map(state.accept, char.encode()))
        assert accepts(automaton, char) == taken, char


def test_numbers_are_those_between_their_bounds() -> None:
    texts = [
        f"{sign}{whole}{fraction}"
        for sign in ("", "-")
        for whole in ("0", "1", "2", "9", "10", "12")
        for fraction in ("", ".0", ".3", ".25", ".5", ".50", ".75", ".99", ".125")
    ]
    for low, high, step in product(
        (None, -2, -0.5, 0, 0.25, 1), (None, -0.5, 0, 0.5, 9.75, 12), (None, 0.25)
    ):
        schema = {"type": "number", "minimum": low, "exclusiveMaximum": high, "multipleOf": step}
        schema = {key: value for key, value in schema.items() if value is not None}
        if low is not None and high is not None and low >= high:
            continue
        automaton = walker(json_of(schema))
        for text in texts:
            value = Fraction(text)
            right = (low is None or value >= Fraction(low)) and (
                high is None or value < Fraction(high)
            )
            right = right and (step is None or value % Fraction(step) == 0)
            if text[0] == "-" and not value:
                continue  # zero with a sign may be left out
            if step is not None and len(text.partition(".")[2]) > 2:
                continue  # and so may zeros behind a multiple's last place
            assert accepts(automaton, text) == right, (schema, text)


def tokenizer_words(kind: str) -> GuideVocabulary:
    hf = sample_tokenizers.load(kind).hf
    return read_vocabulary(hf, vocab_size=len(hf) + 70, stop_token_ids=[hf.eos_token_id])


@pytest.mark.parametrize("kind", ["few bytes", "byte_level", "sentencepiece"])
def test_masks_of_several_vocabularies_are_those_of_llguidance(kind: str) -> None:
    words = FEW_BYTES if kind == "few bytes" else tokenizer_words(kind)
    comparison = Comparison(words)
    names = ["a usual schema", "a tree", "an order", "a shape", "counters", "Folder"]
    found = {name: comparison.first_difference(EVERY[name], tokens=25) for name in names}
    assert found == dict.fromkeys(names, "")
    assert comparison.num_states > 300


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(schemas)
def test_texts_of_any_schema_are_admitted_by_it(schema) -> None:
    """A random walk that never stands still comes to documents that a validator finds right."""
    try:
        core = core_schema(schema)
        automaton = walker(Constraint(kind="json", value=core.schema))
    except UnsupportedConstraint:
        return
    if not core.features <= set(KEYWORDS):
        return
    for text in walked(automaton):
        assert admitted(core.schema, json.loads(text)), (core.schema, text)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(schemas)
def test_masks_of_any_schema_are_those_of_llguidance(schema) -> None:
    try:
        core = core_schema(schema)
    except UnsupportedConstraint:
        return
    constraint = Constraint(kind="json", value=core.schema)
    if core.schema is False or not core.features <= set(KEYWORDS) & set(THEIRS):
        return
    if refusal(constraint):
        return
    assert COMPARISON.first_difference(constraint, walks=2, tokens=30) == "", core.schema


def walked(automaton: AutomatonWalker, num: int = 3, most: int = 150) -> list[bytes]:
    """Texts at the end of random walks; raises where one can neither go on nor end."""
    found = []
    for seed in range(num):
        chance, place, text = random.Random(seed), AutomatonState(), b""
        while len(text) < most:
            choices = following(automaton, place)
            if automaton.may_end(place) and (not choices or chance.random() < 0.5):
                found.append(text)
                break
            assert choices, text
            closing = [byte for byte in choices if byte in b'"}],:']
            byte = chance.choice(closing if closing and chance.random() < 0.6 else choices)
            place = automaton.walk(place, bytes([byte]))
            text += bytes([byte])
    return found


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "below": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                "word": {"type": "string", "pattern": "^[à-ü]{2}$"},
            },
            "required": ["below", "word"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize("schema", [True, {"type": "object"}, TREE], ids=["any", "object", "tree"])
def test_a_text_that_uses_all_levels_can_still_end(schema) -> None:
    automaton = walker(json_of(schema))
    deepest = 0
    for seed in range(5):
        chance, place = random.Random(seed), AutomatonState()
        for num in range(2500):
            choices = following(automaton, place)
            if automaton.may_end(place) and not choices:
                break
            assert choices
            wanted = b'[{",:b' if num < 1200 else b'"}],:0n'
            leading = [byte for byte in choices if byte in wanted]
            follows = num < 1200 or chance.random() < 0.95  # down without a detour
            byte = chance.choice(leading if leading and follows else choices)
            place = automaton.walk(place, bytes([byte]))
            deepest = max(deepest, len(place.stack))
    assert deepest >= MOST_DEPTH - 4


def test_any_value_may_be_nested_as_deep_as_the_stack() -> None:
    automaton = walker(json_of(True))
    for depth in (1, 10, MOST_DEPTH - 1):
        assert accepts(automaton, "[" * depth + "]" * depth)
        assert accepts(automaton, '{"a":' * depth + "0" + "}" * depth)
    assert not accepts(automaton, "[" * 70 + "]" * 70)


@pytest.mark.parametrize("bounds", [(0, 100), (0, 500), (0, 2000), (5, 40), (33, 33), (64, None)])
def test_strings_are_as_long_as_they_may_be(bounds) -> None:
    low, high = bounds
    schema = {"type": "string", "minLength": low} | ({"maxLength": high} if high else {})
    automaton = walker(json_of(schema))
    for size in {0, 1, low - 1, low, low + 1, 32, 33, *([high, high + 1] if high else [4000])}:
        if size < 0:
            continue
        right = low <= size and (high is None or size <= high)
        for char in ("a", "é", "\\n", "😀"):
            assert accepts(automaton, f'"{char * size}"') == right, (size, char)


def test_tables_are_small() -> None:
    assert Backend.automaton(json_of(USUAL)).table_QC.shape[0] < 800
    long = Backend.automaton(json_of({"type": "string", "maxLength": 2000}))
    assert long.table_QC.size < 4000


REFUSED = {
    "too many digits": ({"type": "number", "maximum": 10**400}, "more than 400 digits"),
    "too many states": ({"type": "string", "maxLength": 10**9}, "too large for a table"),
    "too many items": ({"type": "array", "items": True, "maxItems": 10**6}, "counts no more than"),
    "too many words": (
        {
            "type": "array",
            "items": {"enum": [chr(48 + i) * 2 for i in range(70)]},
            "maxItems": 2000,
        },
        "words are the most",
    ),
    "a pattern with a length": (
        {"type": "string", "format": "hostname"},
        "with its length has too many states",
    ),
    "alternatives that begin alike": (
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {
                    "anyOf": [
                        {"type": "array", "items": {"$ref": "#/$defs/a"}},
                        {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1},
                    ]
                },
                "b": {
                    "anyOf": [
                        {"type": "integer"},
                        {"type": "array", "items": {"$ref": "#/$defs/b"}},
                    ]
                },
            },
        },
        "no byte tells them apart",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_too_much_for_a_table_is_refused_with_the_reason(name: str) -> None:
    schema, reason = REFUSED[name]
    assert reason in refusal(json_of(schema))


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("regex", "(?=a)a", "a lookahead"),
        ("regex", "[a&&b]", "which dialects read differently"),
        ("regex", "[]a]", "which dialects read differently"),
        ("regex", "a[^\\s\\S]", "no text satisfies"),
        ("grammar", 'start: "a"', "grammar"),
        ("structure", ["Literal", "a"], "structure"),
    ],
)
def test_what_it_does_not_know_is_refused(kind: str, value: object, reason: str) -> None:
    assert reason in refusal(Constraint(kind=kind, value=value))  # type: ignore[arg-type]


BOMBS = (
    *("(a|b)*a(a|b){20}", "((a{0,20}){0,20}){0,20}", "(a?){500}a{500}", "(.{0,100}x){0,100}"),
    *("a{1000000}", r"(\w+\s?){1,50}", r"((\w{0,90}\d){0,90}x){0,90}"),
)


@pytest.mark.parametrize("pattern", BOMBS)
def test_what_takes_long_is_given_up_soon(pattern: str) -> None:
    walker(Constraint(kind="regex", value=r"\w"))  # what is read once a process
    began = time.process_time()
    assert "too large" in refusal(Constraint(kind="regex", value=pattern))
    assert time.process_time() - began < 2.0  # some 0.3 s where nothing else runs


@pytest.mark.parametrize("num_bits", [32, 53, 64])
def test_bounds_of_many_digits_are_cheap_and_exact(num_bits: int) -> None:
    low, high = 1 - 2**num_bits, 2**num_bits - 1
    began = time.process_time()
    automaton = walker(json_of({"type": "integer", "minimum": low, "maximum": high}))
    assert time.process_time() - began < 0.5
    for inside in (low, low + 1, -(10**9), 0, 10**9, high - 1, high):
        assert accepts(automaton, str(inside)), inside
    for outside in (low - 1, 10 * low, high + 1, 10 * high, "00", "-0", "01"):
        assert not accepts(automaton, str(outside)), outside


def test_a_vocabulary_without_an_end_is_refused_by_name() -> None:
    words = GuideVocabulary(
        token_bytes=[b"a"], special_ids={}, stop_token_ids=(), vocab_size=1, encode=lambda _: [0]
    )
    with pytest.raises(UnsupportedConstraint, match="needs a token that ends a text"):
        Backend(words).compile(Constraint(kind="choice", value=["a"]))
