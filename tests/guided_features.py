"""What each feature of a core schema means, as documents that must and must not pass.

``CASES`` is what a backend is measured by before a feature goes on its allow-list. A document is
given as a JSON text, since how a number or a name is written can matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One core schema that uses a feature."""

    feature: str
    schema: dict[str, Any]
    valid: tuple[str, ...]
    invalid: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.feature} {json.dumps(self.schema)[:90]}"


def _case(feature: str, schema: dict[str, Any], valid: list[str], invalid: list[str]) -> Case:
    return Case(feature, schema, tuple(valid), tuple(invalid))


def _object(
    properties: dict[str, Any], required: tuple[str, ...] = (), rest: Any = False, **more: Any
) -> dict[str, Any]:
    named = {"properties": properties} if properties else {}
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **named, **needed, "additionalProperties": rest, **more}


def _array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_A, _B = {"const": "a"}, {"type": "integer"}
_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": _object({"value": _B, "children": _array({"$ref": "#/$defs/tree"})}, ("value",))
    },
}

CASES = [
    _case(
        "any", _object({"a": True}), ['{"a":[{"b":null}]}', '{"a":-1.5e3}'], ['{"b":1}', '{"a":}']
    ),
    _case("any", _array(True), ['[1,"a",{},[],null]'], ["[1,]", "{}", "[tru]"]),
    _case("null", {"type": "null"}, ["null"], ["0", '""', "false", "nul"]),
    _case("boolean", {"type": "boolean"}, ["true", "false"], ["0", "1", "null", '"true"']),
    _case("enum", {"const": "a"}, ['"a"'], ['"b"', '"aa"', '""', "1"]),
    _case(
        "enum",
        {"enum": ["red", 'a"b', "ä\n", 1, -2.5, True, None]},
        ['"red"', '"a\\"b"', '"ä\\n"', "1", "-2.5", "true", "null"],
        ['"re"', '"redd"', "2", "11", "-2", "-2.55", "false", '"a"', '"1"'],
    ),
    _case("enum", {"enum": [0, False]}, ["0", "false"], ["true", "1", "-1", '""']),
    _case("enum", {"enum": [10, 100]}, ["10", "100"], ["1", "1000", "10.5", "010"]),
    _case("controls", {"const": "a\0b"}, ['"a\\u0000b"'], ['"ab"', '"a"', '"a\\u0001b"']),
    _case("controls", _object({"\x1f": _B}), ['{"\\u001f":1}'], ['{"":1}', '{"\\u001e":1}']),
    _case(
        "number",
        {"type": "number"},
        ["0", "-1", "1.5", "-0.25", "1e5", "1E-7", "2.5e+3", "123456789012345678901234567890"],
        ["01", "1.", ".5", "+1", "NaN", "Infinity", '"1"', "--1", "1e", "0x10", "null"],
    ),
    _case(
        "number:minimum",
        {"type": "number", "minimum": 1.5},
        ["1.5", "1.50", "2", "10", "100.25", "1.51"],
        ["1", "1.49", "0", "-2", "1.4999", "-10", "0.15"],
    ),
    _case(
        "number:minimum",
        {"type": "number", "minimum": -1.5},
        ["-1.5", "-1", "0", "-0.5", "7", "-1.25"],
        ["-2", "-1.51", "-10", "-15"],
    ),
    _case(
        "number:maximum",
        {"type": "number", "maximum": 0.3},
        ["0.3", "0.25", "0", "-7", "-0.5", "0.2999"],
        ["0.31", "1", "0.4", "3", "0.30001"],
    ),
    _case(
        "number:exclusiveMinimum",
        {"type": "number", "exclusiveMinimum": 0},
        ["0.1", "1", "0.001", "12.5"],
        ["0", "0.0", "-1", "-0.1", "-0"],
    ),
    _case(
        "number:exclusiveMinimum",
        {"type": "number", "exclusiveMinimum": -2, "exclusiveMaximum": 2.5},
        ["-1.9", "0", "2.49", "2"],
        ["-2", "2.5", "2.50", "-2.0", "3", "-3", "2.51"],
    ),
    _case(
        "number:exclusiveMaximum",
        {"type": "number", "exclusiveMaximum": 10},
        ["9.99", "9", "-10", "0"],
        ["10", "10.0", "11", "100"],
    ),
    _case(
        "number:multipleOf",
        {"type": "number", "multipleOf": 0.25},
        ["0.25", "1", "-0.5", "2.75", "0", "1.50"],
        ["0.3", "0.2", "1.1", "-0.26", "0.255"],
    ),
    _case(
        "number:multipleOf",
        {"type": "number", "multipleOf": 0.01},
        ["0.01", "1", "19.99", "-0.5"],
        ["0.001", "19.999", "-0.005"],
    ),
    _case(
        "number:multipleOf+bounds",
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1},
        ["0", "0.1", "0.9", "1"],
        ["1.1", "0.15", "-0.1", "2"],
    ),
    _case(
        "integer",
        {"type": "integer"},
        ["0", "-1", "42", "123456789012345678901234567890"],
        ["1.5", "01", '"1"', "null", "true", "1.", "-", "1e-1"],
    ),
    _case(
        "integer:minimum",
        {"type": "integer", "minimum": 17},
        ["17", "18", "20", "99", "100", "1000"],
        ["16", "9", "0", "-17", "-20", "1"],
    ),
    _case("integer:minimum", {"type": "integer", "minimum": 0}, ["0", "7"], ["-1", "-10"]),
    _case(
        "integer:maximum",
        {"type": "integer", "minimum": -25, "maximum": 130},
        ["-25", "-9", "0", "99", "130", "129"],
        ["-26", "131", "200", "-100", "1000"],
    ),
    _case(
        "integer:maximum",
        {"type": "integer", "maximum": -5},
        ["-5", "-6", "-100"],
        ["-4", "0", "5"],
    ),
    _case(
        "integer:multipleOf",
        {"type": "integer", "multipleOf": 7},
        ["0", "7", "-14", "7000"],
        ["1", "8", "-13", "77777778"],
    ),
    _case(
        "integer:multipleOf+bounds",
        {"type": "integer", "minimum": 10, "maximum": 100, "multipleOf": 10},
        ["10", "50", "100"],
        ["0", "5", "15", "110", "101", "-10"],
    ),
    _case(
        "multipleOf:large",
        {"type": "integer", "multipleOf": 12345},
        ["0", "12345", "-24690"],
        ["1", "12346", "5"],
    ),
    _case(
        "string",
        {"type": "string"},
        ['""', '"a"', '"äß漢😀"', '"\\n\\t\\"\\\\"', '"a b"'],
        ['"', "a", "null", '"\n"', '"\\x"', '"a""', "1"],
    ),
    _case(
        "minLength",
        {"type": "string", "minLength": 2},
        ['"ab"', '"ä漢"', '"a\\n"', '"😀😀"', '"\\"\\""'],
        ['""', '"a"', '"\\n"', '"😀"', '"漢"'],
    ),
    _case(
        "maxLength",
        {"type": "string", "maxLength": 2},
        ['""', '"ab"', '"漢字"', '"\\n\\n"', '"😀😀"'],
        ['"abc"', '"a\\nb"', '"漢字漢"', '"\\n\\n\\n"'],
    ),
    _case(
        "maxLength",
        {"type": "string", "minLength": 3, "maxLength": 3},
        ['"abc"', '"\\\\\\\\\\\\"'],
        ['"ab"', '"abcd"', '"\\\\\\\\"'],
    ),
    _case(
        "pattern",
        {"type": "string", "pattern": "^[a-z]+[0-9]{2}$"},
        ['"a12"', '"zz99"'],
        ['"a1"', '"12"', '"a123"', '"A12"', '"a12\\n"', '" a12"'],
    ),
    _case(
        "pattern",
        {"type": "string", "pattern": "foo"},
        ['"foo"', '"a foo b"', '"\\nfoo"'],
        ['"fo"', '""'],
    ),
    _case(
        "pattern",
        {"type": "string", "pattern": "^(?:a|b[\\s\\S]*)$"},
        ['"a"', '"b"', '"b\\nx"', '"b\\"漢"'],
        ['"aa"', '"c"', '""'],
    ),
    *(
        _case(
            "pattern:quotes",
            {"type": "string", "pattern": f"^{found}$"},
            ['"a"', '"\\t"', '"ä"'],
            ['"\\""', '"\\n"', '"\\\\\\""', '"a'],
        )
        for found in ('[^\\x0a"]', '[^\\x0a"\\\\]', '(?:\\x09|[^\\x0a"])', '[^\\x0a"]{1,2}')
    ),
    _case(
        "pattern:quotes",
        {"type": "string", "pattern": '^[^"]*$', "minLength": 1, "maxLength": 3},
        ['"a"', '"\\n\\\\"', '"漢"'],
        ['"\\""', '"a\\""', '""', '"\\n\\""', '"aaaa"'],
    ),
    _case(
        "pattern",
        {"type": "string", "pattern": '^[^\\x00-\\x1f"\\\\]*$'},
        ['"a"', '"ä"'],
        ['"\\""', '"\\\\"', '"\\n"'],
    ),
    _case(
        "patternProperties:quotes",
        _object({}, patternProperties={'^[^"]$': _B}, rest=_A),
        ['{"a":1}', '{"aa":"a"}', '{"\\"":"a"}'],
        ['{"a":"a"}', '{"aa":1}', '{"\\"":1}'],
    ),
    _case("pattern", {"type": "string", "pattern": "^\\\\\\/$"}, ['"\\\\/"'], ['"/"', '"\\\\"']),
    _case(
        "pattern",
        {"type": "string", "pattern": "^[ä-ü漢]$"},
        ['"ö"', '"漢"'],
        ['"o"', '"字"', '"öö"'],
    ),
    _case(
        "pattern+length",
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', '"AB"', '""'],
    ),
    _case(
        "pattern+length",
        {"type": "string", "pattern": "x", "maxLength": 2},
        ['"x"', '"ax"', '"x\\n"'],
        ['"ab"', '"abx"', '"\\n\\nx"'],
    ),
    _case(
        "array", _array(_B), ["[]", "[1]", "[1, 2,3]"], ['["a"]', "[1,]", "{}", "[1 2]", "[1.5]"]
    ),
    _case(
        "prefixItems",
        _array({"type": "boolean"}, prefixItems=[_A, _B]),
        ["[]", '["a"]', '["a",1]', '["a",1,true,false]'],
        ["[1]", '["a","a"]', '["a",true]', '["a",1,1]'],
    ),
    _case(
        "items:false",
        _array(False, prefixItems=[_A, _B]),
        ["[]", '["a"]', '["a",1]'],
        ['["a",1,1]', '["b"]', '["a",1,null]'],
    ),
    _case("items:false", _array(False), ["[]"], ["[1]", "[null]"]),
    _case("minItems", _array(_B, minItems=2), ["[1,2]", "[1,2,3]"], ["[]", "[1]"]),
    _case(
        "minItems", _array(False, prefixItems=[_A, _B], minItems=2), ['["a",1]'], ["[]", '["a"]']
    ),
    _case("maxItems", _array(_B, maxItems=2), ["[]", "[1]", "[1,2]"], ["[1,2,3]"]),
    _case(
        "maxItems",
        _array(_B, prefixItems=[_A], minItems=1, maxItems=3),
        ['["a"]', '["a",1,2]'],
        ["[]", '["a",1,2,3]'],
    ),
    _case("object", _object({}), ["{}", "{ }"], ['{"a":1}', "[]", "null", "{"]),
    _case(
        "properties",
        _object({"b": _B, "a": _A}),
        ["{}", '{"b":1}', '{"a":"a"}', '{"b": 1, "a": "a"}'],
        ['{"b":"a"}', '{"a":1}', '{"b":1,"b":1}', '{"b":1,}', '{"b":1 "a":"a"}', '{"\\u0062":"a"}'],
    ),
    _case(
        "properties:false",
        _object({"a": False, "b": _B}, rest=True),
        ["{}", '{"b":1}', '{"c":1}', '{"b":1,"aa":2}'],
        ['{"a":1}', '{"b":1,"a":1}', '{"c":1,"a":null}', '{"\\u0061":1}'],
    ),
    _case(
        "required",
        _object({"a": _A, "b": _B, "c": _B}, ("a", "c")),
        ['{"a":"a","c":1}', '{"a":"a","b":2,"c":1}'],
        ["{}", '{"a":"a"}', '{"c":1}', '{"b":1,"c":1}'],
    ),
    _case(
        "required",
        _object({'q"': _B, "ä": _B, "": _B}, ('q"', "ä", "")),
        ['{"q\\"":1,"ä":2,"":3}'],
        ['{"q":1,"ä":2,"":3}', '{"q\\"":1,"ä":2}'],
    ),
    _case(
        "additionalProperties:false",
        _object({"a": _A}),
        ["{}", '{"a":"a"}'],
        ['{"b":1}', '{"a":"a","b":1}'],
    ),
    _case(
        "additionalProperties:true",
        _object({"a": _A}, rest=True),
        ["{}", '{"a":"a"}', '{"b":1}', '{"a":"a","b":[1],"aa":"x"}', '{"":0}'],
        ['{"a":1}', '{"b":1,"a":1}', '{"a":"a","a":1}', '{"b":1,}', '{"\\u0061":1}'],
    ),
    _case(
        "additionalProperties:schema",
        _object({"a": _A}, rest=_B),
        ["{}", '{"a":"a","b":1}', '{"b":1,"c":2}', '{"ab":1}', '{"x\\"y":1}'],
        ['{"b":"a"}', '{"a":1}', '{"b":1,"c":"a"}', '{"b":1,"a":1}', '{"aa":"a"}'],
    ),
    _case(
        "additionalProperties:schema",
        _object({"": _A, "ab": _B, "abc": _B}, rest={"type": "null"}),
        ['{"":"a"}', '{"a":null}', '{"ab":1,"abcd":null}'],
        ['{"":null}', '{"ab":null}', '{"abc":null}', '{"a":1}', '{"abcd":1}'],
    ),
    _case(
        "patternProperties",
        _object({}, patternProperties={"^x": _B, "^[^x]y": _A}, rest=False),
        ["{}", '{"x":1}', '{"xy":1,"ay":"a"}', '{"ayy":"a"}'],
        ['{"a":1}', '{"x":"a"}', '{"ay":1}', '{"yx":1}', '{"":1}'],
    ),
    _case(
        "patternProperties",
        _object({"xa": {"type": "integer", "minimum": 5}}, patternProperties={"^x": _B}, rest=True),
        ['{"xa":5}', '{"xb":1}', '{"b":"z"}', '{"xa":7,"xb":1,"b":null}'],
        ['{"xa":1}', '{"xa":"a"}', '{"xb":"a"}', '{"xb":1,"xa":1}'],
    ),
    _case(
        "patternProperties",
        _object({}, patternProperties={"^[a-z]{2,3}$": True}, rest=False),
        ['{"ab":1}', '{"abc":[]}'],
        ['{"a":1}', '{"abcd":1}', '{"AB":1}'],
    ),
    _case(
        "patternProperties",
        _object({"k": _A}, ("k",), patternProperties={"^s": False}, rest=_B),
        ['{"k":"a"}', '{"k":"a","t":1}'],
        ['{"k":"a","s":1}', '{"k":"a","t":"a"}', '{"t":1}', '{"k":"a","sk":1}'],
    ),
    _case(
        "minProperties:one more",
        _object({}, rest=_B, minProperties=1),
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":"a"}'],
    ),
    _case(
        "minProperties:one more",
        _object({"a": _A}, ("a",), rest=_B, minProperties=2),
        ['{"a":"a","b":1}', '{"a":"a","b":1,"c":1}'],
        ["{}", '{"a":"a"}', '{"b":1,"c":1}'],
    ),
    _case(
        "minProperties:one more",
        _object({}, patternProperties={"^x": _B}, rest=False, minProperties=1),
        ['{"x":1}', '{"xx":1,"xy":2}'],
        ["{}", '{"a":1}'],
    ),
    _case(
        "minProperties:one more",
        _object({"a": False}, rest=_B, minProperties=1),
        ['{"b":1}'],
        ["{}", '{"a":1}', '{"a":false}'],
    ),
    _case(
        "minProperties",
        _object({}, rest=_B, minProperties=2),
        ['{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'],
        ["{}", '{"a":1}', '{"a":1,"a":2}'],
    ),
    _case(
        "maxProperties",
        _object({}, rest=_B, maxProperties=2),
        ["{}", '{"a":1}', '{"a":1,"b":2}'],
        ['{"a":1,"b":2,"c":3}'],
    ),
    _case(
        "maxProperties",
        _object({"a": _A}, ("a",), rest=_B, maxProperties=2),
        ['{"a":"a"}', '{"a":"a","b":1}'],
        ['{"a":"a","b":1,"c":1}', "{}"],
    ),
    _case(
        "maxProperties",
        _object({}, patternProperties={"^x": _B}, rest=False, minProperties=1, maxProperties=1),
        ['{"x":1}'],
        ["{}", '{"x":1,"xx":1}'],
    ),
    _case(
        "anyOf",
        {"anyOf": [_B, {"type": "string", "maxLength": 2}, {"const": "abc"}]},
        ["1", '"ab"', '"abc"'],
        ['"abd"', "1.5", "null", '"abcd"'],
    ),
    _case(
        "anyOf",
        {
            "anyOf": [
                _object({"kind": {"const": "x"}, "n": _B}, ("kind",)),
                _object({"kind": {"const": "xy"}, "s": _A}, ("kind", "s")),
            ]
        },
        ['{"kind":"x"}', '{"kind":"x","n":1}', '{"kind":"xy","s":"a"}'],
        ['{"kind":"xy"}', '{"kind":"x","s":"a"}', '{"kind":"xy","n":1}', "{}"],
    ),
    _case(
        "anyOf",
        {
            "anyOf": [
                _object({"a": _B, "b": False}, ("a",), rest=True),
                _object({"a": False, "b": _B}, ("b",), rest=True),
            ]
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"c":0}', '{"b":1,"c":"x"}'],
        ["{}", '{"a":1,"b":1}', '{"c":1}', '{"a":"x"}', '{"a":1,"c":1,"b":1}'],
    ),
    _case(
        "anyOf",
        {"anyOf": [_array(False, prefixItems=[{"const": k}], minItems=1) for k in (1, 12)]},
        ["[1]", "[12]"],
        ["[]", "[2]", "[1,12]", "[123]"],
    ),
    _case(
        "$ref",
        _object(
            {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}},
            **{"$defs": {"t": _array(_B)}},
        ),
        ['{"a":[1],"b":[]}'],
        ['{"a":1}', '{"b":[null]}'],
    ),
    _case(
        "recursion",
        _TREE,
        ['{"value":1}', '{"value":1,"children":[{"value":2,"children":[]}]}'],
        [
            "{}",
            '{"value":1,"children":[{}]}',
            '{"value":1,"children":[{"value":2,"children":[3]}]}',
        ],
    ),
    _case(
        "recursion",
        {
            "$ref": "#/$defs/x",
            "$defs": {"x": {"anyOf": [_B, _array({"$ref": "#/$defs/x"})]}},
        },
        ["1", "[]", "[[1],[[2]],3]"],
        ['"a"', '["a"]', '[[["a"]]]', "[[1]"],
    ),
]
