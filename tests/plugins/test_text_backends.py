"""The backends that read constraints as sets of texts: outlines and lm_format_enforcer."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache

import jsonschema
import pytest

from guided_features import CASES, Case
from octavo import LLM, GuidedParams, SamplingParams
from octavo.errors import UnsupportedConstraint
from octavo.guided.checking import GuideChecker
from octavo.guided.remote import RemoteBackend
from octavo.guided.schema import FEATURES
from octavo.guided.schema.number_text import integers, numbers
from octavo.guided.schema.regex import chars, matches
from octavo.guided.schema.utf8 import utf8
from octavo.testing.guided import check_guided_backend
from octavo.testing.guided_samples import vocabulary
from octavo_plugins.guided.lm_format_enforcer.backend import Backend as Enforcer
from octavo_plugins.guided.outlines.backend import Backend as Outlines
from octavo_plugins.guided.text_keywords import TEXT_KEYWORDS
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuideVocabulary

STOP = 256
WORDS = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(256)), None],
    special_ids={"<end>": STOP},
    stop_token_ids=(STOP,),
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)
BACKENDS = {"outlines": Outlines, "lm_format_enforcer": Enforcer}
REFUSED_TOO = {("outlines", '{"a":[{"b":null}]}')}
"""Too deep for any value in an index."""
both_backends = pytest.mark.parametrize("name", BACKENDS)


@cache
def backend(name: str):
    return BACKENDS[name](WORDS)


def accepts(guide, text: str) -> bool:
    state = guide.start()
    return all(map(state.accept, text.encode())) and state.is_complete()


def test_the_allow_list_names_features_that_are_tried() -> None:
    features = set(TEXT_KEYWORDS) - {"json", "regex", "choice"}
    assert features <= set(FEATURES)
    assert features <= {case.feature for case in CASES}
    backends = PluginHost.discover().guided_backends
    for name in BACKENDS:
        assert backends.info(name).metadata["keywords"] == TEXT_KEYWORDS
        assert not backends.info(name).metadata["native"]
        assert backends.info(name).metadata["rank"] > backends.info("llguidance").metadata["rank"]


@both_backends
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.feature in TEXT_KEYWORDS], ids=lambda case: case.name
)
def test_what_a_feature_admits_is_accepted_and_nothing_else(name: str, case: Case) -> None:
    guide = backend(name).compile(Constraint(kind="json", value=case.schema))
    refused = {(name, text) for text in case.valid if not accepts(guide, text)}
    assert refused <= REFUSED_TOO
    assert [text for text in case.invalid if accepts(guide, text)] == []


@both_backends
@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        ("b", ["b"], ["ab", "bc", ""]),
        ("a|bc", ["a", "bc"], ["ac", "abc"]),
        ("(yes)*|é", ["", "yesyes", "é"], ["yesé", "ye"]),
        ("a?b*c{0,2}", ["", "a", "bbc", "cc"], ["ccc", "ba"]),
        ("(a*b)?", ["", "b", "aab"], ["a", "aa", "bb"]),
        ("yes(, but)?", ["yes", "yes, but"], ["yes,", "yes, but, but"]),
        (".+", ["a", "é", "😀"], ["", "a\n"]),
        (r"\d{2,3}/[^\w]", ["12/-", "123/é"], ["1/-", "12/a"]),
    ],
)
def test_a_pattern_matches_from_end_to_end(name, pattern, valid, invalid) -> None:
    guide = backend(name).compile(Constraint(kind="regex", value=pattern))
    assert [text for text in valid if not accepts(guide, text)] == []
    assert [text for text in invalid if accepts(guide, text)] == []


@both_backends
@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("regex", "(?=a)a", "regex"),
        ("regex", r"(a)\1", "regex"),
        ("regex", "[^\\s\\S]", "no text satisfies the regex"),
        ("grammar", 'start: "a"', "grammar cannot be written"),
        ("structure", [], "structure cannot be written"),
        (
            "json",
            {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [True, {"$ref": "#/$defs/a"}]}}},
            "recursion",
        ),
    ],
)
def test_what_is_no_set_of_texts_is_refused_by_name(name, kind, value, reason) -> None:
    with pytest.raises(UnsupportedConstraint, match=reason):
        backend(name).compile(Constraint(kind=kind, value=value))


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_numbers_are_between_their_bounds(kind) -> None:
    bounds = [-120, -19, -10, -9, -1, 0, 1, 5, 10, 19, 99, 100, 205]
    values = [str(each) for each in range(-230, 231)]
    limits = ["minimum", "maximum"]
    if kind == "number":
        bounds = [-9.5, -0.25, 0, 0.3, 1, 1.05, 12.25]
        limits += ["exclusiveMinimum", "exclusiveMaximum"]
        values = [f"{each / 20:g}" for each in range(-250, 251, 3)]
        values += ["1.050", "1.05", "10.0", "0.29", "0.3", "0.31", "-0.250", "-0.2501", "0.0"]
    cases = [{limit: bound} for limit in limits for bound in bounds]
    pairs = list(itertools.product(bounds[::2], bounds))
    cases += [{limits[-2]: low, limits[-1]: high} for low, high in pairs]
    for core in cases:
        low = core.get("minimum", core.get("exclusiveMinimum", -1e9))
        high = core.get("maximum", core.get("exclusiveMaximum", 1e9))
        node = integers(core) if kind == "integer" else numbers(core)
        for text in values:
            value = float(text)
            wanted = low <= value <= high and value not in (
                core.get("exclusiveMinimum"),
                core.get("exclusiveMaximum"),
            )
            assert matches(node, text) == wanted, (core, text)
        assert not matches(node, "01")
        assert not matches(node, "")


def test_characters_are_their_bytes_in_utf8() -> None:
    edges = [0, 0x7F, 0x80, 0xFF, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10FFFF]
    for low in edges:
        for high in edges[edges.index(low) :]:
            node = utf8(chars([(low, high)]))
            for code in {*edges, low + 1, max(high - 1, 0)} - {*range(0xD800, 0xE000), 0x110000}:
                data = chr(code).encode().decode("latin-1")
                assert matches(node, data) == (low <= code <= high), (low, high, code)
                assert not matches(node, data + "\x80")


@pytest.mark.slow
@both_backends
def test_masks_are_sound_through_a_child(name) -> None:
    made = []

    def make(words):
        made.append(RemoteBackend(name, PluginHost.discover().manifest(), words))
        return made[-1]

    checks = check_guided_backend(name, make, ("json", "regex", "choice"))
    for each in made:
        each.close()
    assert [check for check in checks if not check.passed] == []


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["red", "blue", 7, None]},
        "size": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 20},
        "ids": {"type": "array", "items": {"type": "integer", "minimum": -3}, "maxItems": 3},
    },
    "required": ["kind", "size", "ids"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm():
    with LLM("octavo/tiny", dtype="float32", num_threads=1) as llm:
        yield llm


@pytest.mark.slow
@both_backends
def test_answers_are_what_was_asked_for(llm, name) -> None:
    asked = [{"json": SCHEMA}] * 4 + [{"regex": "(Rome|Par.s)[0-9]{3}"}, {"choice": ["é", "日本"]}]
    params = [
        SamplingParams(
            guided=GuidedParams(**each, backend=name), temperature=1.0, max_tokens=200, seed=seed
        )
        for seed, each in enumerate(asked)
    ]
    outputs = llm.generate(["The answer is "] * len(asked), params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(asked)
    assert {output.guided.backend for output in outputs} == {name}
    *documents, matched, chosen = [output.outputs[0] for output in outputs]
    for each in documents:
        assert each.finish_reason == "stop"
        jsonschema.validate(json.loads(each.text), SCHEMA)
    assert re.fullmatch("(Rome|Par.s)[0-9]{3}", matched.text)
    assert chosen.text in ("é", "日本")


@pytest.mark.slow
@both_backends
def test_a_constraint_that_is_too_large_is_refused_before_an_engine_hears_of_it(name) -> None:
    checker = GuideChecker(PluginHost.discover().manifest(), vocabulary)
    try:
        request = checker.check(GuidedParams(json=SCHEMA, backend=name))
        assert (request.backend, request.kind) == (name, "json")
        if name == "outlines":  # the other compiles nothing: its work has limits a mask
            large = GuidedParams(regex="(.*a.{40}b.*c.{40}d)", backend=name, origin="guided_regex")
            with pytest.raises(
                UnsupportedConstraint, match="regex constraint is too large"
            ) as caught:
                checker.check(large)
            assert caught.value.param == "guided_regex"
        with pytest.raises(UnsupportedConstraint, match=f"{name} lacks grammar"):
            checker.check(GuidedParams(grammar='start: "a"', backend=name))
    finally:
        checker.close()
