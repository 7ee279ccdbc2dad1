"""References whose target depends on the way by which a schema was reached."""

from __future__ import annotations

import jsonschema
import jsonschema_rs
import pytest

from octavo.guided.schema import core_schema

LIST = {
    "$id": "list",
    "type": "array",
    "items": {"$dynamicRef": "#item"},
    "$defs": {"any": {"$dynamicAnchor": "item"}},
}
WORDS = {
    "$id": "https://example.com/words",
    "$ref": "list",
    "$defs": {"word": {"$dynamicAnchor": "item", "type": "string"}, "list": LIST},
}
BOTH = {
    "$id": "https://example.com/both",
    "properties": {"words": {"$ref": "words"}, "numbers": {"$ref": "numbers"}},
    "additionalProperties": {"$ref": "list"},
    "$defs": {
        "list": LIST,
        "words": {
            "$id": "words",
            "$ref": "list",
            "$defs": {"word": {"$dynamicAnchor": "item", "type": "string"}},
        },
        "numbers": {
            "$id": "numbers",
            "$ref": "list",
            "$defs": {"number": {"$dynamicAnchor": "item", "type": "number"}},
        },
    },
}
TREE = {
    "$id": "https://example.com/strict",
    "$dynamicAnchor": "node",
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {
        "tree": {
            "$id": "tree",
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": {"data": True, "children": {"items": {"$dynamicRef": "#node"}}},
        }
    },
}
OLD = {
    "$schema": "https://json-schema.org/draft/2019-09/schema",
    "$id": "https://example.com/old",
    "$recursiveAnchor": True,
    "$ref": "tree",
    "required": ["data"],
    "$defs": {
        "tree": {
            "$id": "tree",
            "$recursiveAnchor": True,
            "type": "object",
            "properties": {"child": {"$recursiveRef": "#"}},
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        (WORDS, ["a"]),
        (WORDS, [1]),
        (BOTH, {"words": ["a"], "numbers": [1], "others": [1, "a"]}),
        (BOTH, {"words": [1]}),
        (BOTH, {"numbers": ["a"]}),
        (TREE, {"children": [{"data": 1, "children": []}]}),
        (TREE, {"children": [{"daat": 1}]}),
        (TREE, {"daat": 1}),
        (OLD, {"data": 1, "child": {"data": 2}}),
        (OLD, {"data": 1, "child": {"x": 2}}),
        (OLD, {"data": 1, "child": {"data": 1, "child": {}}}),
    ],
)
def test_a_dynamic_reference_leads_to_the_outermost_anchor_on_its_way(schema, document) -> None:
    wanted = jsonschema.validators.validator_for(schema)(schema).is_valid(document)
    core = jsonschema_rs.Draft202012Validator(core_schema(schema).schema)
    assert core.is_valid(document) is wanted
