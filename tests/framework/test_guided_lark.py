"""JSON schemas inside of grammars are read as those that stand alone."""

from __future__ import annotations

import json

import pytest

from octavo import GuidedParams
from octavo.errors import ParameterError, UnsupportedConstraint
from octavo.guided.choose import choose_guide
from octavo.guided.lark import with_schemas
from octavo_registry import PluginHost


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def written(grammar: str, host: PluginHost) -> str:
    request = choose_guide(GuidedParams(grammar=grammar), host)
    assert request.backend == "llguidance"
    value: str = json.loads(request.value)
    return value


@pytest.mark.parametrize(
    "grammar",
    [
        'start: %json {"const": -9223372036854775808}',
        'start: "a" b\nb: %json\n  {"properties": {"a": {"enum": [1, -9223372036854775808]}}}',
        'start: <"%json> x\nx: %json {"const": -9223372036854775808}',
        'start: %lark { start: %json {"const": -9223372036854775808}\n}',
        'start: /\\/"/ %json {"items": {"const": -9223372036854775808}} // %json {}',
        '%llguidance {"x": "\\"%json"}\nstart: %json {"const": -9223372036854775808}',
    ],
)
def test_a_value_that_ends_the_library_is_refused_in_grammars_too(grammar, host) -> None:
    with pytest.raises(UnsupportedConstraint, match="llguidance lacks enum:large"):
        choose_guide(GuidedParams(grammar=grammar), host)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"contains": {"const": 1}, "minContains": 9}', "'contains' at #"),
        ('{"type": "strin"}', "'strin'"),
        ("5", "a schema is an object or a boolean"),
        ('{"const": NaN}', "NaN is no JSON"),
        ('{"type": "string"', "no JSON in line 1"),
        ("[" * 100_000, "no JSON in line 1"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(schema, said, host) -> None:
    with pytest.raises((UnsupportedConstraint, ParameterError), match=said):
        choose_guide(GuidedParams(grammar=f"start: %json {schema}"), host)


def test_words_that_only_look_like_a_schema_stay_as_they_are(host) -> None:
    for grammar in (
        'start: "%json {}" | /%json 5/  # %json {',
        "start: A // %json {\nA: /a/ & ~/(?s:%json.*)/",
        "start: /a/i",
    ):
        assert written(grammar, host) == grammar


def test_a_schema_becomes_its_core_and_keeps_how_it_is_to_be_written(host) -> None:
    options = {"whitespace_flexible": False}
    schema = {"allOf": [{"type": "integer"}, {"minimum": 2}], "x-guidance": options}
    found = written(f'start: "n=" %json {json.dumps(schema)} ";"', host)
    core = {"type": "integer", "minimum": 2, "x-guidance": options}
    assert found == f'start: "n=" %json {json.dumps(core)} ";"'


def test_several_schemas_are_replaced_each_by_its_own() -> None:
    grammar = 'start: a "x" b\na: %json {"const": 1}\nb: %json true\n'
    found = with_schemas(grammar, lambda schema: [schema])
    assert found == 'start: a "x" b\na: %json [{"const": 1}]\nb: %json [true]\n'


def test_a_grammar_that_has_no_words_is_refused_with_its_line(host) -> None:
    with pytest.raises(ParameterError, match="cannot be read in line 2"):
        choose_guide(GuidedParams(grammar='start: %json {}\nx: "a'), host)
