"""A core schema admits exactly the documents that the user's schema admits."""

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import core_schema
from random_schemas import admitted, documents, schemas


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(documents, min_size=8, max_size=20))
def test_any_schema_is_rewritten_exactly_or_refused(schema, found):
    try:
        core = core_schema(schema).schema
    except UnsupportedConstraint:
        return
    for document in found:
        try:
            expected = admitted(schema, document)
        except RecursionError:  # it refers to itself without end, which the draft leaves undefined
            return
        assert admitted(core, document) is expected, (schema, core, document)


@pytest.mark.parametrize("values", [[[1], ["a"]], [[True], [None]], [[[1]], [["a"]], [[None]]]])
def test_each_of_several_arrays_is_left_out(values: list[object]) -> None:
    core = core_schema({"not": {"enum": values}}).schema
    assert not any(admitted(core, value) for value in values)
    assert all(admitted(core, value) for value in ([], [2], ["b"], [False], [[2]], [["b"]], 1, {}))


@pytest.mark.parametrize("item", ["oops", {"minimun": 1}, {"$schema": "no/dialect"}])
def test_a_part_is_checked_where_another_was_made_for_its_place(item: object) -> None:
    inner = {"not": {"enum": [[1], ["a"]], "prefixItems": [item]}}
    with pytest.raises(UnsupportedConstraint, match="at /components/x/not/prefixItems/0"):
        core_schema({"$ref": "#/components/x", "components": {"x": inner}})


@pytest.mark.slow
def test_few_of_the_random_schemas_are_refused():
    outcomes = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(schemas)
    def count(schema):
        try:
            core_schema(schema)
            outcomes["rewritten"] += 1
        except UnsupportedConstraint:
            outcomes["refused"] += 1

    count()
    assert outcomes["rewritten"] > 2 * outcomes["refused"], outcomes


@pytest.mark.parametrize("seed", range(4))
def test_what_may_contain_itself_does_so_whatever_the_order_of_sets(seed: int) -> None:
    """The order follows from the seed of hashes, which is a process's own."""
    code = (
        "from octavo.guided.schema import core_schema; "
        "node = {'type': 'object', 'required': ['below'], 'properties': {"
        "'below': {'anyOf': [{'type': 'null'}, {'$ref': '#/$defs/node'}]}}}; "
        "print(core_schema({'$ref': '#/$defs/node', '$defs': {'node': node}}).schema)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "$ref" in done.stdout, done.stdout
