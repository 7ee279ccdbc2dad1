"""Ways to ask for structured output offline, and what asking wrongly says."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from pydantic import BaseModel

from markdown import ROOT, code_blocks
from octavo import LLM, GuidedParams, SamplingParams
from octavo.errors import BadRequestError, ParameterError, UnsupportedConstraint
from octavo.guided.choose import asked_guide, choose_guide, read_asked, remembering_choice
from octavo_registry import PluginHost, structure


class Person(BaseModel):
    name: Literal["Ada", "Alan"]
    born: bool


@dataclass
class Place:
    city: Literal["Paris", "Rome"]
    big: bool


class Point(msgspec.Struct):
    x: Literal[1, 2]


def closed(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """No other names: the class could not be made of such an answer."""
    schema["$defs"][name]["additionalProperties"] = False
    return schema


TAG = structure.Chain((structure.Literal("<n>"), structure.RegexText("[0-9]")))
SCHEMA = {"type": "object", "properties": {"é": {"type": "null"}}}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"json": SCHEMA}, SCHEMA),
        ({"json": json.dumps(SCHEMA)}, SCHEMA),
        ({"json": False}, False),
        ({"json": Person}, Person.model_json_schema()),
        ({"json": Place}, closed(msgspec.json.schema(Place), "Place")),
        ({"json": Point}, closed(msgspec.json.schema(Point), "Point")),
        ({"json_object": True}, True),
        ({"regex": "[ab]+\n"}, "[ab]+\n"),
        ({"choice": ("yes", 'a "b"')}, ["yes", 'a "b"']),
        ({"grammar": "root ::= [a]"}, "root ::= [a]"),
        ({"structural_tag": {"format": {"type": "any_text"}}}, {"format": {"type": "any_text"}}),
        ({"structural_tag": TAG}, TAG),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_is_asked_survives_the_way_to_another_process(given, read) -> None:
    asked = asked_guide(GuidedParams(**given, backend="llguidance"))
    again = read_asked(asked)
    assert getattr(again, asked.name) == read
    assert again.backend == "llguidance"
    assert asked_guide(again) == asked


def read_asked_again(params: GuidedParams) -> GuidedParams:
    return dataclasses.replace(read_asked(asked_guide(params)), origin=params.origin)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"json": {"a": {1, 2}}}, "json is not made of JSON types"),
        ({"json": "{"}, "json is not a JSON schema"),
        ({"json": "[" * 100_000}, "json is not a JSON schema"),
        ({"json": "[1]"}, "must be a schema"),
        ({"json": int}, "must be a schema"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"json_object": False}, "json_object=False must be true"),
        ({"regex": "("}, "regex is no regular expression"),
        ({"regex": ""}, "must be text of 1 to"),
        ({"regex": "a" * (2**20 + 1)}, "characters"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": "ab"}, "must be a list"),
        ({"choice": []}, "must be a list"),
        ({"grammar": 7}, "must be text"),
        ({"grammar": "root ::= x"}, "no rule 'x'"),
        ({"structural_tag": "{"}, "is not JSON"),
        ({"structural_tag": {}}, "needs 'format'"),
        ({"regex": "a", "backend": "llguidence"}, "close: ['llguidance']"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_an_error_names_the_field_in_which_the_constraint_was_given(given, problem) -> None:
    params = GuidedParams(**given, origin="structured_outputs")
    with pytest.raises(BadRequestError, match=re.escape(problem)) as caught:
        choose_guide(read_asked_again(params), PluginHost.discover())
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("given", [{}, {"regex": "a", "choice": ["a"]}])
def test_there_is_exactly_one_constraint(given) -> None:
    with pytest.raises(ParameterError, match="exactly one constraint"):
        GuidedParams(**given)


@pytest.fixture(scope="module")
def llm():
    with LLM("octavo/tiny", dtype="float32", num_threads=1) as llm:
        yield llm


def ask(llm: LLM, **constraint: Any) -> tuple[str, Any]:
    params = SamplingParams(
        temperature=1.0, seed=3, max_tokens=96, guided=GuidedParams(**constraint)
    )
    (output,) = llm.generate("The capital of France is", params, use_tqdm=False)
    assert output.error is None
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text, output.guided


def test_answers_are_held_to_each_constraint_that_is_asked_for(llm) -> None:
    text, receipt = ask(llm, regex="[ab]{3}-[0-9]")
    assert re.fullmatch("[ab]{3}-[0-9]", text)
    assert (receipt.constraint, receipt.backend) == ("regex", "llguidance")
    assert ask(llm, choice=["yes", 'a "b"'])[0] in ("yes", 'a "b"')
    assert re.fullmatch("x+y", ask(llm, grammar='root ::= "x"+ y\ny ::= "y"')[0])
    assert json.loads(ask(llm, json={"enum": [1, "é"]})[0]) in (1, "é")
    assert Person.model_validate_json(ask(llm, json=Person)[0]).name in ("Ada", "Alan")
    assert msgspec.json.decode(ask(llm, json=Place)[0], type=Place).city in ("Paris", "Rome")
    assert msgspec.json.decode(ask(llm, json=Point)[0], type=Point).x in (1, 2)
    assert re.fullmatch("<n>[0-9]", ask(llm, structural_tag=TAG)[0])


def test_a_constraint_that_nothing_enforces_is_refused_before_anything_runs(llm) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.raises(UnsupportedConstraint, match="uniqueItems"):
        ask(llm, json=schema)


def test_the_example_of_the_page_runs_as_it_stands_there(capsys) -> None:
    blocks = code_blocks(ROOT / "docs" / "structured-output.md", "python")
    exec(next(block for block in blocks if "LLM" in block), {})
    assert capsys.readouterr().out == "Rome llguidance\n"


def test_a_structure_is_never_taken_from_a_stranger() -> None:
    ours = {"kind": "TextUntil", "ends": []}
    pattern = {"type": "regex", "pattern": "[0-9]"}
    for given in ({"structure": ours}, {"structure": ours, "format": pattern}):
        asked = asked_guide(GuidedParams(structural_tag=given))
        with pytest.raises(ParameterError, match="structural_tag"):
            choose_guide(read_asked(asked), PluginHost.discover())


def test_a_constraint_that_comes_again_is_not_understood_again() -> None:
    choose = remembering_choice(PluginHost.discover())
    first = choose(GuidedParams(json={"type": "integer"}))
    assert choose(GuidedParams(json={"type": "integer"})) is first
    assert choose(GuidedParams(json={"type": "string"})) != first
    for _ in range(2):
        with pytest.raises(BadRequestError, match="no rule 'x'") as refused:
            choose(GuidedParams(grammar="root ::= x", origin="field"))
        assert refused.value.param == "field"
