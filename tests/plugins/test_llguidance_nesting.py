"""What is nested so deep that it would end the library's stack, and with it the process."""

from __future__ import annotations

import json

import pytest

from octavo.errors import UnsupportedConstraint
from octavo.testing.guided_samples import vocabulary
from octavo_plugins.guided.llguidance.backend import Backend
from octavo_registry.guided import Constraint
from octavo_registry.structure import Chain, JsonText, Literal, plain

BACKEND = Backend(vocabulary())
DEEP, SHALLOW = 3_000, 200


def chain_of_rules(num_rules: int, body: str = "{}") -> str:
    rules = [f"r{i}: {body.format(f'r{i + 1}')}" for i in range(num_rules)]
    return "\n".join(["start: r0", *rules, f'r{num_rules}: "a"'])


def chain_of_definitions(num_definitions: int) -> dict:
    definitions = {
        f"d{i}": {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}},
            "additionalProperties": False,
        }
        for i in range(num_definitions)
    }
    definitions[f"d{num_definitions}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def constraints(depth: int) -> dict[str, Constraint]:
    schema = chain_of_definitions(depth)
    terminals = chain_of_rules(depth, '{} "x"').replace("r", "A").replace("staAt", "start")
    inside = f"start: %lark {{ {chain_of_rules(depth)}\n }}"
    return {
        "rules": Constraint(kind="grammar", value=chain_of_rules(depth)),
        "rules in brackets": Constraint(
            kind="grammar", value=chain_of_rules(depth, '"x" ([{}] | "z")* "y"')
        ),
        "terminals": Constraint(kind="grammar", value=terminals),
        "what is ignored": Constraint(kind="grammar", value=f"%ignore A0\n{terminals}"),
        "a grammar inside": Constraint(kind="grammar", value=inside),
        "a schema": Constraint(kind="json", value=schema),
        "a schema in a grammar": Constraint(
            kind="grammar", value=f"start: %json {json.dumps(schema)}"
        ),
        "a schema in a structure": Constraint(
            kind="structure", value=plain(Chain((Literal("a"), JsonText(schema))))
        ),
    }


@pytest.mark.parametrize("name", constraints(1))
def test_what_is_nested_too_deep_is_refused_and_nothing_dies(name: str) -> None:
    with pytest.raises(UnsupportedConstraint, match="levels deep; at most 1000"):
        BACKEND.compile(constraints(DEEP)[name])
    BACKEND.compile(constraints(SHALLOW)[name]).start()


def test_rules_that_lead_back_to_themselves_are_as_deep_as_there_are_rules() -> None:
    grammar = 'start: a\na: "(" b ")" | "x"\nb: a | "[" start "]"\n'
    BACKEND.compile(Constraint(kind="grammar", value=grammar)).start()
