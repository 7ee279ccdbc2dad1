"""Random schemas and documents, and a validator that means by them what the framework does."""

import re

import jsonschema
from hypothesis import strategies as st

from octavo.guided.schema.formats import PATTERNS

NAMES = ["a", "b", "ab", "c"]
STRINGS = ["", "a", "b", "ab", "ba", "abc", "2024-02-29", "2023-02-29", "\n"]
REGEXES = ["^a", "b$", "^[ab]*$", "a|c", "^.{1,2}$", "b"]
NUMBERS = [-2, -1, 0, 1, 2, 3, 1.5, 0.5, 7]

scalars = st.sampled_from([None, True, False, *NUMBERS, *STRINGS])
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=6,
)
counts = st.integers(0, 3)
leaves = st.one_of(
    st.booleans(),
    st.builds(dict),
    *(
        st.builds(lambda value, key=key: {key: value}, values)
        for key, values in {
            "type": st.one_of(
                *(
                    st.sampled_from(
                        ["null", "boolean", "integer", "number", "string", "array", "object"]
                    ),
                    st.just(["string", "null"]),
                    st.just(["integer", "object"]),
                )
            ),
            "const": documents,
            "enum": st.lists(documents, min_size=1, max_size=3),
            "minimum": st.sampled_from(NUMBERS),
            "maximum": st.sampled_from(NUMBERS),
            "exclusiveMinimum": st.sampled_from(NUMBERS),
            "exclusiveMaximum": st.sampled_from(NUMBERS),
            "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5]),
            "minLength": counts,
            "maxLength": counts,
            "pattern": st.sampled_from(REGEXES),
            "format": st.sampled_from(["date", "ipv4", "int32"]),
            "minItems": counts,
            "maxItems": counts,
            "uniqueItems": st.booleans(),
            "minProperties": counts,
            "maxProperties": counts,
            "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=3),
            "dependentRequired": st.dictionaries(
                st.sampled_from(NAMES),
                st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
                max_size=2,
            ),
        }.items()
    ),
)


def _merged(parts):
    return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


def _composed(inner):
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    keywords = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), some),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "prefixItems": some,
        "items": inner,
        "contains": inner,
        "minContains": counts,
        "maxContains": counts,
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(REGEXES), inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "dependentSchemas": named,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "$ref": st.sampled_from(["#", "#/$defs/x"]),
    }
    choices = [
        st.builds(lambda value, key=key: {key: value}, values) for key, values in keywords.items()
    ]
    return st.lists(st.one_of(*choices, leaves), min_size=1, max_size=4).map(_merged)


schemas = st.tuples(st.recursive(leaves, _composed, max_leaves=8), leaves).map(
    lambda pair: {**pair[0], "$defs": {"x": pair[1]}} if isinstance(pair[0], dict) else pair[0]
)


def _pattern(validator, pattern, instance, schema):
    if validator.is_type(instance, "string") and not re.search(_python(pattern), instance):
        yield jsonschema.ValidationError("pattern")


def _python(pattern):
    """The dialects differ in $, which in Python also stands before a last line feed."""
    return pattern.replace("$", "\\Z").replace(".{", "[^\n\r\u2028\u2029]{")


def _pattern_properties(validator, patterns, instance, schema):
    if validator.is_type(instance, "object"):
        for pattern, item in patterns.items():
            for name, value in instance.items():
                if re.search(_python(pattern), name):
                    yield from validator.descend(value, item)


def _additional_properties(validator, item, instance, schema):
    if not validator.is_type(instance, "object"):
        return
    for name, value in instance.items():
        if name in schema.get("properties", {}):
            continue
        if any(re.search(_python(key), name) for key in schema.get("patternProperties", {})):
            continue
        yield from validator.descend(value, item)


FORMATS = jsonschema.FormatChecker(formats=())
for _name, _expression in PATTERNS.items():
    FORMATS.checks(_name)(
        lambda value, _expression=_expression: (
            not isinstance(value, str) or re.fullmatch(_expression, value) is not None
        )
    )
Reference = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)


def admitted(schema, document):
    return Reference(schema, format_checker=FORMATS).is_valid(document)
