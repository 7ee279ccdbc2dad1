import json
import re
import time

import jsonschema_rs
import pytest

from guided_features import CASES
from octavo.errors import UnsupportedConstraint
from octavo.guided.schema import FEATURES, core_schema, without_nul
from octavo.guided.schema.formats import PATTERNS
from random_schemas import admitted


def accepts(schema, document):
    return jsonschema_rs.Draft202012Validator(core_schema(schema).schema).is_valid(document)


def draft(number, **schema):
    return {"$schema": f"http://json-schema.org/draft-0{number}/schema#", **schema}


def test_a_keyword_without_a_type_speaks_only_about_its_own_type():
    assert accepts({"minimum": 3}, "text")
    assert not accepts({"minimum": 3}, 2)
    assert accepts({"required": ["a"]}, [])


def test_annotations_say_nothing_and_an_empty_schema_is_anything():
    assert core_schema({"title": "t", "default": 3, "x-mine": {"type": "string"}}).schema is True
    assert core_schema({"properties": {}}).schema is True


def test_what_nothing_satisfies_is_false():
    for schema in (
        False,
        {"type": "string", "enum": [1]},
        {"allOf": [{"pattern": "^a"}, {"pattern": "^b"}], "type": "string"},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}},
    ):
        assert core_schema(schema).schema is False


def test_properties_keep_the_users_order_through_every_rewriting():
    schema = {
        "type": "object",
        "properties": {"z": True, "m": {"type": "integer"}},
        "allOf": [{"properties": {"b": True, "m": {"minimum": 1}}}, {"required": ["q"]}],
        "oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}],
    }
    core = core_schema(schema).schema
    assert list(core["properties"]) == ["z", "m", "b", "a", "q"]
    assert core["properties"]["m"] == {"type": "integer", "minimum": 1}


def test_a_chain_of_conditions_on_one_name_stays_linear():
    kinds = [f"kind{index}" for index in range(40)]
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": kinds}},
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"required": [kind]},
            }
            for kind in kinds
        ],
    }
    core = core_schema(schema).schema
    assert len(core["anyOf"]) == len(kinds)
    assert accepts(schema, {"kind": "kind7", "kind7": 0})
    assert not accepts(schema, {"kind": "kind7", "kind8": 0})


def test_a_recursive_schema_keeps_its_name():
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}},
        "additionalProperties": False,
    }
    core = core_schema({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert core.schema["$ref"] == "#/$defs/Node"
    assert "recursion" in core.features


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (draft(4, minimum=1, exclusiveMinimum=True), 2, 1),
        (draft(4, definitions={"a": {"type": "null"}}, items={"$ref": "#/definitions/a"}),
         [None], [1]),
        (draft(7, items=[{"const": 1}], additionalItems=False), [1], [1, 1]),
        (draft(7, dependencies={"a": ["b"]}), {"b": 1}, {"a": 1}),
        (draft(7, dependencies={"a": {"required": ["b"]}}), {"a": 1, "b": 1}, {"a": 1}),
        (draft(7, properties={"a": {"$ref": "#/definitions/n", "type": "string"}},
               definitions={"n": {"type": "null"}}), {"a": None}, {"a": "x"}),
        ({"$id": "http://x/root", "$ref": "item", "$defs": {"i": {"$id": "item", "const": 1}}},
         1, 2),
        ({"$ref": "#here", "$defs": {"i": {"$anchor": "here", "const": 1}}}, 1, 2),
        ({"properties": {"a": {"const": 1}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        ({"anyOf": [{"prefixItems": [True]}, {"minItems": 3}], "unevaluatedItems": False}, [1],
         [1, 2]),
        ({"contains": {"const": 1}, "maxItems": 3, "items": {"type": "integer"}}, [2, 1], [2, 3]),
        ({"contains": {"const": 1}}, [2, "x", 1, [1]], [2, [1]]),
        ({"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, [1, 2, 1, 3, 1, 4],
         [1, 2, 1, 3, 1, 1]),
        ({"contains": {"const": 1}, "maxItems": 99, "items": {"type": "integer"}}, [2, 1, 5],
         [2, 1, "x"]),
        ({"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False},
         [1, "a", "b"], [1, "a", 2]),
        ({"allOf": [{"contains": {"const": 1}}], "unevaluatedItems": {"type": "null"}},
         [None, 1, None], [None, 1, 2]),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "contains": {"const": 1},
          "items": [True], "unevaluatedItems": False}, [1], [2, 1]),
        ({"not": {"items": {"type": "string"}}, "type": "array"}, ["a", "b", 1], ["a", "b"]),
        ({"not": {"contains": {"const": 1}}, "unevaluatedItems": {"const": 2}}, [2, 2], [2, 3]),
        ({"items": {"enum": [1, 2]}, "uniqueItems": True}, [2, 1], [1, 1]),
        ({"propertyNames": {"pattern": "^a"}}, {"ab": 1}, {"b": 1}),
        ({"propertyNames": {"enum": ["a"]}}, {"a": 1}, {"b": 1}),
        ({"not": {"properties": {"a": {"const": "x"}}, "required": ["a"]}}, {"a": "y"}, {"a": "x"}),
        ({"type": "string", "not": {"enum": ["a", "b"]}}, "c", "b"),
        ({"type": "number", "not": {"const": 2}}, 2.5, 2),
        ({"enum": [1, True, "1"]}, True, 0),
        ({"const": 1.0}, 1, True),
    ],
)  # fmt: skip
def test_spellings_of_all_drafts_mean_what_their_draft_says(schema, good, bad):
    assert accepts(schema, good)
    assert not accepts(schema, bad)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"minLenght": 3}, "'minLenght' at #: no keyword of JSON Schema; is 'minLength' meant"),
        ({"items": {"maximun": 3}}, "'maximun' at /items"),
        ({"type": "strng"}, "'type'"),
        ({"required": True}, "'required'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "array", "contains": {"const": 1}, "minContains": 9}, "'contains'"),
        ({"type": "string", "pattern": "(?=a)b"}, "'pattern' at #: .*lookahead"),
        ({"type": "string", "pattern": "(a)\\1"}, "'pattern' at #: .*back reference"),
        ({"type": "string", "format": "datetime"}, "'format' at #: .*is 'date-time' meant"),
        ({"type": "string", "format": "idn-hostname"}, "'format'"),
        ({"$ref": "http://elsewhere/x"}, "'\\$ref' at #: .*not in this document"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "'\\$ref' at /properties/a"),
        ({"$ref": "#"}, "'\\$ref' at #: leads back to itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "leads back to itself"),
        ({"$schema": "http://example.com/mine"}, "'\\$schema'"),
        ({"type": "number", "not": {"multipleOf": 2}}, "'multipleOf'"),
        ({"minLength": -1, "type": "string"}, "'minLength'"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_keyword_and_place(schema, keyword):
    with pytest.raises(UnsupportedConstraint, match=keyword):
        core_schema(schema)


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def doubling(levels):
    """Each definition holds the next one twice: 2^levels places."""
    names = {
        f"d{index}": {
            "properties": {side: {"$ref": f"#/$defs/d{index + 1}"} for side in ("a", "b")}
        }
        for index in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{levels}": {"type": "null"}}}


def crossed(count):
    """Every combination of branches is possible: 3^count alternatives."""
    return {
        "allOf": [
            {"anyOf": [{"required": [f"{side}{index}"]} for side in "abc"]}
            for index in range(count)
        ]
    }


@pytest.mark.parametrize(
    "bomb",
    [
        nested(70),
        {"properties": {f"p{index}": {} for index in range(5_001)}},
        {"enum": list(range(10_001))},
        {"description": "x" * (1 << 20)},
        {"const": float("nan")},
        {"const": {1: 2}},
        crossed(12),
        {"oneOf": [crossed(6), crossed(7)]},
        {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(30, 40)]},
        {"type": "string", "pattern": "(" * 2_000 + ")" * 2_000},
    ],
)
def test_a_bomb_is_refused_in_bounded_time(bomb):
    begin = time.process_time()
    with pytest.raises(UnsupportedConstraint):
        core_schema(bomb)
    assert time.process_time() - begin < 5


def test_branches_of_many_alternatives_are_only_asked_whether_they_overlap():
    """All pairs of their alternatives at once would be too many combinations."""
    core = core_schema({"type": "object", "oneOf": [crossed(4), crossed(5)]}).schema
    first_four = {f"a{index}": 1 for index in range(4)}
    assert admitted(core, first_four)
    assert not admitted(core, {**first_four, "b4": 1})
    assert not admitted(core, {"a0": 1})


def test_patterns_of_several_schemas_that_overlap_are_cut_into_disjoint_ones():
    schema = {
        "type": "object",
        "allOf": [
            {
                "patternProperties": {"^a": {"type": "integer"}},
                "additionalProperties": {"const": 1},
            },
            {"patternProperties": {"b$": {"minimum": 5}}, "additionalProperties": {"maximum": 3}},
        ],
    }
    for name, good, bad in (("ab", 7, 3), ("a", 2, 4), ("b", None, 1), ("c", 1, 2)):
        assert good is None or accepts(schema, {name: good})
        assert not accepts(schema, {name: bad})
    patterns = list(core_schema(schema).schema["patternProperties"])
    for name in ("ab", "a", "b", "aab", "aa", "bb", "c"):
        assert sum(re.search(pattern, name) is not None for pattern in patterns) <= 1


@pytest.mark.parametrize("pattern", ["", ".*", "^.*", "[a-z]*", "^[0-9]*"])
def test_a_pattern_that_all_names_match_is_no_pattern(pattern: str) -> None:
    core = core_schema({"patternProperties": {pattern: {"type": "null"}}, "type": "object"})
    assert core.schema == {"type": "object", "additionalProperties": {"type": "null"}}


def test_a_number_of_properties_is_asked_for_only_where_all_that_are_listed_are_required():
    schema = {"type": "object", "properties": {"a": True, "b": True}, "minProperties": 2}
    waiting = [core_schema(schema).schema, core_schema({**schema, "maxProperties": 2}).schema]
    waiting.append(
        core_schema({**schema, "minProperties": 1, "additionalProperties": False}).schema
    )
    for core in waiting:
        for shape in core.get("anyOf", [core]):
            listed = {
                name for name, item in shape.get("properties", {}).items() if item is not False
            }
            if shape.keys() & {"minProperties", "maxProperties"}:
                assert listed <= set(shape.get("required", ()))
    assert not accepts(schema, {"a": 1})
    assert accepts(schema, {"a": 1, "c": 1})


def test_what_is_shared_is_written_once():
    core = core_schema(doubling(40)).schema
    assert len(json.dumps(core)) < 20_000


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29",
         "2024-13-01"]),
        ("time", ["00:00:00Z", "23:59:60Z", "12:00:00.5+02:00"], ["24:00:00Z", "12:00:00",
         "12:60:00Z"]),
        ("date-time", ["2024-01-01T00:00:00Z"], ["2024-01-01 00:00:00Z", "2024-01-01"]),
        ("duration", ["P1D", "PT1H30M", "P2W", "P1Y2M3DT4H"], ["P", "PT", "P1W2D", "1D"]),
        ("email", ["a@b.c", "a.b+c@d-e.org"], ["a", "a@", "@b", "a..b@c", "a b@c"]),
        ("hostname", ["a", "a-b.c0"], ["-a", "a-", "a..b", "a_b", "a" * 64, "a." * 126 + "ab"]),
        ("ipv4", ["0.0.0.0", "255.1.2.3"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
        ("ipv6", ["::", "::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1::2::3", ":1", "12345::"]),
        ("uri", ["http://a/b?c#d", "urn:x:y", "mailto:a@b"], ["a", "/b", "http://a b", "://x"]),
        ("uri-reference", ["a/b", "/x", "#f", "http://a"], ["a b", "\\x"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        ("json-pointer", ["", "/a/~0~1"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["-1", "01", "/a"]),
        ("iri", ["http://\u0192.\xdf\xe5r/?\u2202=\u03c0\xeex#\u03c0\xee\xfcx",
         "urn:oasis", "http://[2001:db8::1]/\xe9"],
         ["/abc", "http://2001:db8::7334", "\\\\W\\S", "a b:c"]),
        ("iri-reference", ["", "/\xe2\u03c0\u03c0", "\xe2\u03c0\u03c0", "#\u0192r\xe4g",
         "//\u0192\xf8\xf8.\xdf\xe5r/?q", "http://\xe9"],
         ["a b", "\\\\W", "[", "%zz"]),
        ("idn-email", ["\uc2e4\ub840@\uc2e4\ub840.\ud14c\uc2a4\ud2b8", "joe@example.com",
         "\"\u03b4\"@b\xfccher.de", "\xe9@x.\u65e5\u672c"],
         ["2962", "a@", "@b.c", "user\uff20example.com", "a@\xc9X.com", "a@b..c", "a b@c.d"]),
        ("uri-template", ["", "/{a}/{b:3}/{c*}{?d,e.f}", "x-{+y}\xe9'", "{%41}"],
         ["{", "{a", "}", "{a b}", "{}", "{=a}", "a<b", "%4"]),
        ("regex", ["", "([abc])+\\s+$", "^a|(?:b(c{2,}d)?)*$", "[^a-z\\d]{0,3}?", "[]", "[^]",
         "\\cA\\u00e9", "(?<=a+)b(?!c)", "[-0-9A-Z_]"],
         ["^(abc]", "\\a", "\\Z", "(?P<n>a)", "(?i)a", "(?#c)a", "*a", "a**", "[z-a]", "[a",
         "a{2,1}", "(", "\\", "\\01", "(?<n>a)(?<n>b)"]),
    ],
)  # fmt: skip
def test_a_format_is_what_its_pattern_says(name, good, bad):
    schema = {"type": "string", "format": name}
    assert [text for text in good if not accepts(schema, text)] == []
    assert [text for text in bad if accepts(schema, text)] == []


def test_every_format_has_a_test():
    marks = test_a_format_is_what_its_pattern_says.pytestmark
    assert {arguments[0] for arguments in marks[0].args[1]} == PATTERNS.keys()


def test_an_unknown_format_is_an_annotation():
    assert core_schema({"type": "string", "format": "int32"}).schema == {"type": "string"}


def test_the_table_of_features_has_a_case_for_each_of_them():
    assert {case.feature for case in CASES} == FEATURES.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_table_of_features_agrees_with_the_standard(case):
    validator = jsonschema_rs.Draft202012Validator(case.schema)
    assert all(validator.is_valid(json.loads(text)) for text in case.valid)
    for text in case.invalid:
        try:
            document = json.loads(
                text, object_pairs_hook=_without_repetition, parse_constant=_refuse
            )
        except ValueError:
            continue
        assert not validator.is_valid(document), text


def _parsed(text):
    return json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_refuse)


def _refuse(name):
    raise ValueError(f"{name} is no JSON")


def _without_repetition(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_core_schema_is_its_own_core_and_says_which_feature_it_uses(case):
    core = core_schema(case.schema)
    assert case.feature in core.features
    again = core_schema(core.schema)
    assert again == core


def test_without_nul_takes_u0000_out_of_classes_that_leave_out_quotes_and_nothing_else():
    core = {"type": "object", "properties": {"a": {"type": "string", "pattern": '^[^"]*b$'}}}
    assert without_nul(core)["properties"]["a"]["pattern"] == '^[^\\x00"]*b$'
    for pattern in ("^a$", "^[\\s\\S]$", '^[^\\x00-\\x1f"]$', "x"):
        assert without_nul({"pattern": pattern}) == {"pattern": pattern}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"type": "number", "minimum": 0.1, "maximum": 2**53},
    ],
)
def test_bounds_beyond_which_nothing_passes_take_no_feature_of_their_own(schema) -> None:
    assert "bounds:large" not in core_schema(schema).features


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "maximum": 2**53 + 1},
        {"type": "integer", "maximum": -(2**63) - 1},
        {"type": "integer", "minimum": 2**63},
        {"type": "number", "maximum": 2**53 + 1},
        {"type": "number", "maximum": 2**63},
        {"type": "number", "minimum": -(10**400)},
    ],
)
def test_bounds_that_libraries_would_round_or_cut_off_are_named(schema) -> None:
    assert "bounds:large" in core_schema(schema).features
