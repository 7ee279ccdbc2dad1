from __future__ import annotations

import json
import random
import re

import pytest

from octavo.testing.structure_texts import admits, random_text, random_value
from octavo.tools.forms import call_form, functions, json_object
from octavo_registry.structure import (
    Chain,
    JsonText,
    Literal,
    OneOf,
    RegexText,
    Repeat,
    TextUntil,
    Triggered,
)


def function(name: str, **rest: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **rest}}


def test_a_tool_without_parameters_takes_no_arguments_and_others_an_object() -> None:
    found = functions([function("a"), function("b", parameters={}), {"type": "web_search"}])
    assert [(each.name, dict(each.parameters)) for each in found] == [
        ("a", {"type": "object", "properties": {}, "additionalProperties": False}),
        ("b", {"type": "object"}),
    ]
    assert functions(None) == []


def test_a_form_is_one_call_or_several_with_the_text_around_them() -> None:
    calls = [json_object(each, arguments="p") for each in functions([function("a"), function("b")])]
    texts = {
        "before_all": "<",
        "before_each": "(",
        "after_each": ")",
        "between": ",",
        "after_all": ">",
    }
    for parallel, pattern in ((False, r"<(CALL)>"), (True, r"<(CALL)(,CALL){0,3}>")):
        form = call_form(calls, parallel=parallel, triggers=["<"], **texts)
        assert form.triggers == ("<",)
        pattern = pattern.replace("CALL", r'\({"name": "[ab]", "p": {}}\)')
        for seed in range(20):
            text = random_text(form.calls, random.Random(seed))
            assert re.fullmatch(pattern, text), text


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": ["string", "null"]},
    {"type": "array", "items": {"enum": ["x", 1]}},
    {"type": "number"},
    {"type": "boolean"},
    {},
    True,
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_random_values_are_what_the_schema_admits(schema) -> None:
    for seed in range(20):
        assert admits(schema, random_value(schema, random.Random(seed)))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": "integer"}, 1.5),
        ({"type": ["string", "null"]}, 1),
        ({"enum": [1]}, 2),
        ({"type": "array", "items": {"type": "string"}}, ["a", 1]),
        ({"type": "object", "required": ["a"]}, {}),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}),
        ({"additionalProperties": False}, {"a": 1}),
        (False, 1),
    ],
)
def test_what_a_schema_forbids_is_not_admitted(schema, value) -> None:
    assert not admits(schema, value)


def test_random_texts_follow_their_structure() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        pattern = r"[a-c]+\d{2,3}(?:x|y)?[^a-z]\."
        assert re.fullmatch(pattern, random_text(RegexText(pattern), chance))
        until = random_text(TextUntil(("</a>", "|")), chance)
        assert until.endswith(("</a>", "|"))
        assert not any(end in until[:-1] for end in ("</a>", "|"))
        assert random_text(Chain((Literal("a"), OneOf((Literal("b"), Literal("c"))))), chance) in (
            "ab",
            "ac",
        )
        assert random_text(Repeat(Literal("a"), least=2, most=2, separator=","), chance) == "a,a"
        call = Literal("<a>")
        text = random_text(Triggered(("<a>",), (call,), least=1, most=2), chance)
        assert 1 <= text.count("<a>") <= 2
        assert json.loads(random_text(JsonText({"type": "integer"}), chance)) % 1 == 0
