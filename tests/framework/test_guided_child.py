"""What the process that compiles constraints knows before it makes its copies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NoReturn

import pytest

from octavo.errors import UnsupportedConstraint
from octavo.guided.checking import StartChild
from octavo.guided.child import _Compiler
from octavo.guided.choose import asked_guide
from octavo.guided.schema import formats
from octavo.params import GuidedParams
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint


def test_copies_find_the_patterns_of_all_formats_read() -> None:
    formats._parsed.cache_clear()
    start = StartChild.of(PluginHost.discover().manifest(), vocabulary())
    _Compiler(start).learn()
    assert formats._parsed.cache_info().currsize == len(formats.PATTERNS)


class Failing:
    """A backend that takes no schema, and says so in words of its own."""

    def compile(self, constraint: Constraint) -> NoReturn:
        raise ValueError("no schemas, please")


def test_a_backend_that_fails_on_the_formats_ends_no_process() -> None:
    compiler = _Compiler(StartChild.of(PluginHost.discover().manifest(), vocabulary()))
    compiler._backends = dict.fromkeys(compiler._backends, Failing())
    compiler.learn()


WORDS = r"^(?:\S+\s+){0,99}\S+$"
TOO_MUCH = {"type": "string", "maxLength": 5000, "pattern": WORDS}
"""One hundred words in 5,000 characters: states for each pair of their counts."""
BEFORE = {f"p{number}": {"enum": ["some text"]} for number in range(8)}
LATE = {
    "type": "object",
    "properties": {**BEFORE, "answer": TOO_MUCH},
    "required": [*BEFORE, "answer"],
}
"""A walk of a few steps ends long before the answer."""
TAG = {"begin": "<t>", "content": {"type": "json_schema", "json_schema": LATE}, "end": "</t>"}


@pytest.fixture(scope="module")
def compiler() -> _Compiler:
    return _Compiler(StartChild.of(PluginHost.discover().manifest(), vocabulary()))


@pytest.mark.parametrize(
    "params",
    [
        GuidedParams(json=LATE),
        GuidedParams(json={"type": "array", "items": {"anyOf": [{"type": "null"}, TOO_MUCH]}}),
        GuidedParams(structural_tag={"type": "structural_tag", "format": {"type": "tag", **TAG}}),
        GuidedParams(grammar=f'start: "the answer is: " %json {json.dumps(LATE)}'),
    ],
    ids=["an object", "an array", "a tag", "a grammar"],
)
def test_what_would_fail_where_it_is_read_is_found_out_before(compiler, params) -> None:
    with pytest.raises(UnsupportedConstraint, match=r"llguidance: .*too many expressions"):
        compiler._compiled(asked_guide(replace(params, backend="llguidance")), on_device=False)


def test_the_next_backend_is_asked_and_the_refusal_names_the_string(compiler) -> None:
    with pytest.raises(UnsupportedConstraint, match=r"llguidance: .*5000.*; automaton: ") as found:
        compiler._compiled(asked_guide(GuidedParams(json=LATE)), on_device=False)
    assert "'pattern'" in str(found.value)


def test_a_string_of_few_states_stays_with_the_first_backend(compiler) -> None:
    for most, pattern in ((300, r"^(?:\S+\s+){0,9}\S+$"), (20_000, "^[a-z]+$")):
        string = {**TOO_MUCH, "maxLength": most, "pattern": pattern}
        schema = {**LATE, "properties": {**BEFORE, "answer": string}}
        checked = compiler._compiled(asked_guide(GuidedParams(json=schema)), on_device=False)
        assert checked.guide.backend == "llguidance"
