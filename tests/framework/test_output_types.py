"""Output types of Outlines as constraints: what each admits, and what it refuses."""

from __future__ import annotations

import datetime
import enum
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import outlines.types as types
import pytest
from outlines.types.dsl import python_types_to_terms, to_regex
from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from octavo import GuidedParams
from octavo.errors import BadRequestError, ConfigError, ParameterError, UnsupportedConstraint
from octavo.guided.choose import choose_guide
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, GuideVocabulary

STOP = 256
BYTES = GuideVocabulary(
    token_bytes=[*(bytes([byte]) for byte in range(256)), None],
    special_ids={"<end>": STOP},
    stop_token_ids=(STOP,),
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)


@cache
def host() -> PluginHost:
    return PluginHost.discover()


def acceptor(output_type: Any) -> Callable[[str], bool]:
    request = choose_guide(GuidedParams.of(output_type), host())
    backend = host().guided_backends.load(request.backend)(BYTES)
    guide = backend.compile(Constraint(kind=request.kind, value=json.loads(request.value)))

    def accepts(text: str) -> bool:
        state = guide.start()
        return all(map(state.accept, text.encode())) and state.is_complete()

    return accepts


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, lt=150, multiple_of=2)
    plate: types.Regex("[A-Z]{2}[0-9]+")  # type: ignore[valid-type]


class Place(TypedDict):
    street: str


@dataclass
class Point:
    x: int
    y: int


def paint(colour: str, layers: int = 1) -> None: ...


def unknown(colour: Nobody) -> None: ...  # type: ignore[name-defined]  # noqa: F821


ANN = '{"name": "Ann", "age": 30, "plate": "AB12"}'
OLD, ODD = ANN.replace("30", "150"), ANN.replace("30", "31")
LONG_PLATE = ANN.replace("AB12", "xAB12")
MORE = ANN.replace("}", ', "b": 1}')
SMALL = types.JsonSchema({"type": "integer", "minimum": 3, "maximum": 5})
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "int": (int, ["0", "-12"], ["01", "1.0", ""]),
    "float": (float, ["0.5", "1e9"], [".5", "one"]),
    "bool": (bool, ["True", "False"], ["true", ""]),
    "str": (str, ['"a b"', '""'], ["a", '"']),
    "date": (datetime.date, ["2024-02-29"], ["2024-13-01"]),
    "literal": (Literal["Rome", "Paris"], ["Rome", "Paris"], ["Rom", "Rome "]),
    "literal with a number": (Literal["many", 1.5], ["many", "1.5"], ["1x5", "2"]),
    "enum": (Colour, ["red", "green"], ["RED", "blue"]),
    "union": (int | Colour, ["7", "red"], ["7red", ""]),
    "optional": (int | None, ["7", "None"], ["null", ""]),
    "list": (list[int], ["[1]", "[1, -2]"], ["[]", "[1,2]", "[1", "1"]),
    "tuple": (tuple[int, bool], ["(1, True)"], ["(1)", "(1, 2)"]),
    "dict": (dict, ['{"a": [1, null]}', "{}"], ["[1]", "{a: 1}"]),
    "dict of": (dict[str, int], ['{"a":1, "b":2}', "{}"], ['{"a":"b"}', "{1:1}"]),
    "pydantic": (Person, [ANN], [OLD, ODD, LONG_PLATE, MORE, "{}"]),
    "dataclass": (Point, ['{"x": 1, "y": 2}'], ['{"x": 1}', '{"x": 1, "y": 2, "z": 3}']),
    "typed dict": (Place, ['{"street": "High"}'], ['{"street": 1}', '{"street": "a", "b": 1}']),
    "function": (paint, ['{"colour": "red"}', '{"colour": "red", "layers": 2}'], ["{}"]),
    "json in a list": (list[Person], [f"[{ANN}, {ANN}]"], ["[]", f"[{ODD}]", f"[{ANN}"]),
    "json in a union": (Person | int, [ANN, "4"], [OLD, ODD, "x"]),
    "json in an option": (Person | None, [ANN, "None"], [ODD, ""]),
    "json in a dict": (dict[str, Point], ['{"a":{"x": 1, "y": 2}}'], ['{"a":{"x": 1}}']),
    "schema": (SMALL, ["3", "5"], ["2", "6"]),
    "schemas": (types.zero_or_more(SMALL + ";"), ["", "3;5;"], ["3;6;", "3"]),
    "one or more": (types.one_or_more(SMALL + ";"), ["3;"], ["", "2;"]),
    "so many": (types.exactly(2, SMALL + ";"), ["3;4;"], ["3;", "3;4;5;"]),
    "at least": (types.at_least(2, SMALL + ";"), ["3;4;", "3;4;5;"], ["3;", "3;4;6;"]),
    "at most": (types.at_most(1, SMALL + ";"), ["", "3;"], ["3;4;", "6;"]),
    "between": (types.between(1, 2, SMALL + ";"), ["3;", "3;4;"], ["", "3;4;5;"]),
    "an option": ("n=" + types.optional(SMALL), ["n=", "n=4"], ["n=6", "4"]),
    "either": (types.either("none", SMALL), ["none", "4"], ["6", "non"]),
    "choice": (types.Choice(["a", SMALL]), ["a", "4"], ["6", "b"]),
    "texts": (types.Choice(["a.", "b"]), ["a.", "b"], ["ab", "a"]),
    "pattern": (types.Regex("[0-9]+") + "kg", ["70kg"], ["kg", "70"]),
    "grammar": (types.cfg('start: "(" start ")" | "x"'), ["x", "((x))"], ["(x", ""]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_output_type_admits_what_outlines_means_by_it(name: str) -> None:
    output_type, valid, invalid = CASES[name]
    accepts = acceptor(output_type)
    assert [text for text in valid if not accepts(text)] == []
    assert [text for text in invalid if accepts(text)] == []


def test_the_cases_are_right_about_outlines() -> None:
    for text in (ANN, OLD, ODD, LONG_PLATE):
        try:
            Person.model_validate_json(text)
        except ValidationError:
            assert text != ANN
        else:
            assert text == ANN
    for name in ("int", "float", "bool", "str", "date", "literal with a number", "list", "tuple"):
        output_type, valid, invalid = CASES[name]
        pattern = to_regex(python_types_to_terms(output_type))
        assert all(re.fullmatch(pattern, text) for text in valid)
        assert not any(re.fullmatch(pattern, text) for text in invalid)


def test_ready_made_types_admit_what_they_are_for() -> None:
    assert acceptor(types.email)("ann@example.com")
    assert acceptor(types.ipv4)("127.0.0.1")
    assert not acceptor(types.ipv4)("127.0.0.256")
    assert acceptor(types.uuid4)("9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d")
    assert acceptor(types.semver)("1.20.3-rc.1")


@pytest.mark.parametrize(
    ("output_type", "error", "reason"),
    [
        (complex, ParameterError, "complex is currently not supported.$"),
        (list, ParameterError, "list is currently not supported.$"),
        (lambda x: x, ParameterError, "type annotation"),
        (types.either(types.cfg("start: A"), "x"), ParameterError, "CFG"),
        (types.JsonSchema({}, whitespace_pattern=" "), UnsupportedConstraint, "whitespace_pattern"),
        (types.JsonSchema({"uniqueItems": True}), BadRequestError, "uniqueItems"),
        (types.zero_or_more(types.JsonSchema({"uniqueItems": True})), BadRequestError, "unique"),
        (unknown, ParameterError, "not fully defined"),
        (types.isbn, BadRequestError, "regex"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(output_type, error, reason) -> None:
    with pytest.raises(error, match=reason):
        acceptor(output_type)


def test_the_backend_is_the_one_that_is_named() -> None:
    assert GuidedParams.of(int, backend="outlines").backend == "outlines"
    assert choose_guide(GuidedParams.of(int, backend="outlines"), host()).backend == "outlines"


def test_without_outlines_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "octavo.guided.schema.output_types", raising=False)
    monkeypatch.setitem(sys.modules, "outlines.types", None)
    with pytest.raises(ConfigError, match="pip install 'outlines"):
        GuidedParams.of(int)


def test_outlines_is_imported_when_it_is_asked_and_keeps_nothing_on_disk(tmp_path) -> None:
    code = """
import sys
from octavo import GuidedParams
import octavo.guided.choose, octavo_plugins.guided.outlines.backend
GuidedParams(choice=["a", "b"])
assert "outlines" not in sys.modules
GuidedParams.of(list[int])
import octavo_plugins.guided.outlines.model
assert "outlines" in sys.modules
assert "torch" not in sys.modules
"""
    homes = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "OUTLINES_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **homes},
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*outlines*")) == []
