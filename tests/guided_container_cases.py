"""Features of arrays, objects and references."""

from __future__ import annotations

from guided_case import INT, A, arrays, case, objects

_TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": objects({"value": INT, "children": arrays({"$ref": "#/$defs/tree"})}, ("value",))
    },
}

CONTAINER_CASES = [
    case(
        "array",
        arrays(INT),
        ["[]", "[1]", "[1, 2,3]"],
        ['["a"]', "[1,]", "{}", "[1 2]", "[1.5]"],
    ),
    case(
        "prefixItems",
        arrays({"type": "boolean"}, prefixItems=[A, INT]),
        ["[]", '["a"]', '["a",1]', '["a",1,true,false]'],
        ["[1]", '["a","a"]', '["a",true]', '["a",1,1]'],
    ),
    case(
        "items:false",
        arrays(False, prefixItems=[A, INT]),
        ["[]", '["a"]', '["a",1]'],
        ['["a",1,1]', '["b"]', '["a",1,null]'],
    ),
    case("items:false", arrays(False), ["[]"], ["[1]", "[null]"]),
    case("minItems", arrays(INT, minItems=2), ["[1,2]", "[1,2,3]"], ["[]", "[1]"]),
    case(
        "minItems",
        arrays(False, prefixItems=[A, INT], minItems=2),
        ['["a",1]'],
        ["[]", '["a"]'],
    ),
    case("maxItems", arrays(INT, maxItems=2), ["[]", "[1]", "[1,2]"], ["[1,2,3]"]),
    case(
        "maxItems",
        arrays(INT, prefixItems=[A], minItems=1, maxItems=3),
        ['["a"]', '["a",1,2]'],
        ["[]", '["a",1,2,3]'],
    ),
    case("object", objects({}), ["{}", "{ }"], ['{"a":1}', "[]", "null", "{"]),
    case(
        "properties",
        objects({"b": INT, "a": A}),
        ["{}", '{"b":1}', '{"a":"a"}', '{"b": 1, "a": "a"}'],
        ['{"b":"a"}', '{"a":1}', '{"b":1,"b":1}', '{"b":1,}', '{"b":1 "a":"a"}', '{"\\u0062":"a"}'],
    ),
    case(
        "pattern:quotes",
        objects({"const": {"type": "string", "pattern": '^[^\\x0a"]$'}}, ("const",)),
        ['{"const":"a"}'],
        ['{"const":"\\""}', '{"const":"aa"}'],
    ),
    case(
        "properties:false",
        objects({"a": False, "b": INT}, rest=True),
        ["{}", '{"b":1}', '{"c":1}', '{"b":1,"aa":2}'],
        ['{"a":1}', '{"b":1,"a":1}', '{"c":1,"a":null}', '{"\\u0061":1}'],
    ),
    case(
        "required",
        objects({"a": A, "b": INT, "c": INT}, ("a", "c")),
        ['{"a":"a","c":1}', '{"a":"a","b":2,"c":1}'],
        ["{}", '{"a":"a"}', '{"c":1}', '{"b":1,"c":1}'],
    ),
    case(
        "required",
        objects({'q"': INT, "ä": INT, "": INT}, ('q"', "ä", "")),
        ['{"q\\"":1,"ä":2,"":3}'],
        ['{"q":1,"ä":2,"":3}', '{"q\\"":1,"ä":2}'],
    ),
    case(
        "additionalProperties:false",
        objects({"a": A}),
        ["{}", '{"a":"a"}'],
        ['{"b":1}', '{"a":"a","b":1}'],
    ),
    case(
        "additionalProperties:true",
        objects({"a": A}, rest=True),
        ["{}", '{"a":"a"}', '{"b":1}', '{"a":"a","b":[1],"aa":"x"}', '{"":0}'],
        ['{"a":1}', '{"b":1,"a":1}', '{"a":"a","a":1}', '{"b":1,}', '{"\\u0061":1}'],
    ),
    case(
        "additionalProperties:schema",
        objects({"a": A}, rest=INT),
        ["{}", '{"a":"a","b":1}', '{"b":1,"c":2}', '{"ab":1}', '{"x\\"y":1}'],
        ['{"b":"a"}', '{"a":1}', '{"b":1,"c":"a"}', '{"b":1,"a":1}', '{"aa":"a"}'],
    ),
    case(
        "additionalProperties:schema",
        objects({"a": A, "ä": A}, rest=INT),
        ['{"a":"a","b":1}', '{"ää":1}'],
        ['{"\\u0061":1}', '{"ä":1}', '{"\\u00e4":1}'],
    ),
    case(
        "additionalProperties:schema",
        objects({'q"': A, "n\n": A}, rest=INT),
        ['{"q\\"":"a","q":1}', '{"n\\n":"a","n":1}'],
        ['{"q\\"":1}', '{"q\\u0022":1}', '{"n\\n":1}', '{"n\n":1}'],
    ),
    case(
        "additionalProperties:schema",
        objects({"": A, "ab": INT, "abc": INT}, rest={"type": "null"}),
        ['{"":"a"}', '{"a":null}', '{"ab":1,"abcd":null}'],
        ['{"":null}', '{"ab":null}', '{"abc":null}', '{"a":1}', '{"abcd":1}'],
    ),
    case(
        "patternProperties",
        objects({}, patternProperties={"^x": INT, "^[^x]y": A}, rest=False),
        ["{}", '{"x":1}', '{"xy":1,"ay":"a"}', '{"ayy":"a"}'],
        ['{"a":1}', '{"x":"a"}', '{"ay":1}', '{"yx":1}', '{"":1}'],
    ),
    case(
        "patternProperties",
        objects(
            {"xa": {"type": "integer", "minimum": 5}}, patternProperties={"^x": INT}, rest=True
        ),
        ['{"xa":5}', '{"xb":1}', '{"b":"z"}', '{"xa":7,"xb":1,"b":null}'],
        ['{"xa":1}', '{"xa":"a"}', '{"xb":"a"}', '{"xb":1,"xa":1}'],
    ),
    case(
        "patternProperties",
        objects({}, patternProperties={"^[a-z]{2,3}$": True}, rest=False),
        ['{"ab":1}', '{"abc":[]}'],
        ['{"a":1}', '{"abcd":1}', '{"AB":1}'],
    ),
    case(
        "patternProperties",
        objects({"k": A}, ("k",), patternProperties={"^s": False}, rest=INT),
        ['{"k":"a"}', '{"k":"a","t":1}'],
        ['{"k":"a","s":1}', '{"k":"a","t":"a"}', '{"t":1}', '{"k":"a","sk":1}'],
    ),
    case(
        "minProperties:one more",
        objects({}, rest=INT, minProperties=1),
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":"a"}'],
    ),
    case(
        "minProperties:one more",
        objects({"a": A}, ("a",), rest=INT, minProperties=2),
        ['{"a":"a","b":1}', '{"a":"a","b":1,"c":1}'],
        ["{}", '{"a":"a"}', '{"b":1,"c":1}'],
    ),
    case(
        "minProperties:one more",
        objects({}, patternProperties={"^x": INT}, rest=False, minProperties=1),
        ['{"x":1}', '{"xx":1,"xy":2}'],
        ["{}", '{"a":1}'],
    ),
    case(
        "minProperties:one more",
        objects({"a": False}, rest=INT, minProperties=1),
        ['{"b":1}'],
        ["{}", '{"a":1}', '{"a":false}'],
    ),
    case(
        "minProperties",
        objects({}, rest=INT, minProperties=2),
        ['{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'],
        ["{}", '{"a":1}', '{"a":1,"a":2}'],
    ),
    case(
        "maxProperties",
        objects({}, rest=INT, maxProperties=2),
        ["{}", '{"a":1}', '{"a":1,"b":2}'],
        ['{"a":1,"b":2,"c":3}'],
    ),
    case(
        "maxProperties",
        objects({"a": A}, ("a",), rest=INT, maxProperties=2),
        ['{"a":"a"}', '{"a":"a","b":1}'],
        ['{"a":"a","b":1,"c":1}', "{}"],
    ),
    case(
        "maxProperties",
        objects({}, patternProperties={"^x": INT}, rest=False, minProperties=1, maxProperties=1),
        ['{"x":1}'],
        ["{}", '{"x":1,"xx":1}'],
    ),
    case(
        "anyOf",
        {"anyOf": [INT, {"type": "string", "maxLength": 2}, {"const": "abc"}]},
        ["1", '"ab"', '"abc"'],
        ['"abd"', "1.5", "null", '"abcd"'],
    ),
    case(
        "anyOf",
        {
            "anyOf": [
                objects({"kind": {"const": "x"}, "n": INT}, ("kind",)),
                objects({"kind": {"const": "xy"}, "s": A}, ("kind", "s")),
            ]
        },
        ['{"kind":"x"}', '{"kind":"x","n":1}', '{"kind":"xy","s":"a"}'],
        ['{"kind":"xy"}', '{"kind":"x","s":"a"}', '{"kind":"xy","n":1}', "{}"],
    ),
    case(
        "anyOf",
        {
            "anyOf": [
                objects({"a": INT, "b": False}, ("a",), rest=True),
                objects({"a": False, "b": INT}, ("b",), rest=True),
            ]
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"c":0}', '{"b":1,"c":"x"}'],
        ["{}", '{"a":1,"b":1}', '{"c":1}', '{"a":"x"}', '{"a":1,"c":1,"b":1}'],
    ),
    case(
        "anyOf",
        {"anyOf": [arrays(False, prefixItems=[{"const": k}], minItems=1) for k in (1, 12)]},
        ["[1]", "[12]"],
        ["[]", "[2]", "[1,12]", "[123]"],
    ),
    case(
        "$ref",
        objects(
            {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}},
            **{"$defs": {"t": arrays(INT)}},
        ),
        ['{"a":[1],"b":[]}'],
        ['{"a":1}', '{"b":[null]}'],
    ),
    case(
        "recursion",
        _TREE,
        ['{"value":1}', '{"value":1,"children":[{"value":2,"children":[]}]}'],
        [
            "{}",
            '{"value":1,"children":[{}]}',
            '{"value":1,"children":[{"value":2,"children":[3]}]}',
        ],
    ),
    case(
        "recursion",
        {
            "$ref": "#/$defs/x",
            "$defs": {"x": {"anyOf": [INT, arrays({"$ref": "#/$defs/x"})]}},
        },
        ["1", "[]", "[[1],[[2]],3]"],
        ['"a"', '["a"]', '[[["a"]]]', "[[1]"],
    ),
]
