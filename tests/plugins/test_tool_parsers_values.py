from __future__ import annotations

import random
import re
from typing import Any

import pytest

from octavo.testing.structure_texts import random_text
from tag_formats import BY_NAME, Format, calls_of, formats
from tool_parsers import Call, tool

TYPED = tool(
    "call",
    text="string",
    count="integer",
    ratio="number",
    flag="boolean",
    items="array",
    options="object",
    nothing="null",
    maybe={"type": ["string", "null"]},
    either={"anyOf": [{"type": "integer"}, {"type": "string"}]},
    level={"enum": [1, 2]},
    wrapped={"$ref": "#/$defs/inner"},
)
TYPED["function"]["parameters"]["$defs"] = {"inner": {"allOf": [{"type": "object"}]}}


@formats
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "42", "42"),
        ("text", ' "quoted" ', ' "quoted" '),
        ("text", "null", "null"),
        ("count", " 42 ", 42),
        ("count", "+7", 7),
        ("count", '"8"', 8),
        ("count", "many", "many"),
        ("ratio", "3", 3),
        ("ratio", "-2.5e3", -2500.0),
        ("count", "007", 7),
        ("ratio", ".5", 0.5),
        ("ratio", "nan", "nan"),
        ("flag", "0", False),
        ("flag", "True", True),
        ("flag", "false", False),
        ("items", '["a", 1, null]', ["a", 1, None]),
        ("items", "['it\\'s', True, (1,)]", ["it's", True, [1]]),
        ("options", '{"a": {"b": "</c>"}}', {"a": {"b": "</c>"}}),
        ("options", '{"a": \'b "c"\', "d": True,}', {"a": 'b "c"', "d": True}),
        ("options", '{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ("options", "{not an object}", "{not an object}"),
        ("options", '"{\\"a\\": 1}"', {"a": 1}),
        ("nothing", "None", None),
        ("maybe", "null", None),
        ("maybe", "none", "none"),
        ("maybe", "nullable", "nullable"),
        ("either", "5", 5),
        ("either", "5 apples", "5 apples"),
        ("either", "007", "007"),
        ("level", "2", 2),
        ("wrapped", '{"x": []}', {"x": []}),
    ],
)
def test_a_value_has_the_type_that_the_schema_gives(
    format: Format, key: str, text: str, value: Any
) -> None:
    rendered = format.render(Call("call", {key: text}))
    if format.name == "deepseek_v32" and value != text:
        rendered = rendered.replace('string="true"', 'string="false"')
    assert calls_of(format.parser, rendered, [TYPED]) == [("call", {key: value})]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("qwen3_coder", "5"),
        ("seed_oss", "5"),
        ("minimax_m2", "5"),
        ("step3", "5"),
        ("glm45", 5),
        ("deepseek_v32", "5"),
    ],
)
def test_without_a_schema_the_format_says_what_a_value_is(name: str, value: Any) -> None:
    format = BY_NAME[name]
    assert calls_of(format.parser, format.render(Call("f", {"x": "5"}))) == [("f", {"x": value})]


@formats
def test_a_schema_that_text_cannot_be_held_to_has_no_form(format: Format) -> None:
    open_ended = tool("f", x={"type": "string", "pattern": "a|b"})
    grouped = tool("f", x="string")
    grouped["function"]["parameters"]["anyOf"] = [{"required": ["x"]}]
    unnamed = tool("f", x="string")
    unnamed["function"]["parameters"]["required"] = ["y"]
    assert format.parser.form([open_ended], parallel=False) is None
    assert format.parser.form([unnamed], parallel=False) is None
    assert format.parser.form([grouped], parallel=True) is None


@formats
def test_the_form_keeps_to_what_schemas_say_of_strings(format: Format) -> None:
    tools = [
        tool(
            "f",
            code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
            short={"type": "string", "minLength": 1, "maxLength": 4},
            choice={"anyOf": [{"const": "a b"}, {"type": "null"}]},
            wrapped={"$ref": "#/$defs/size"},
        )
    ]
    tools[0]["function"]["parameters"]["$defs"] = {"size": {"enum": ["S", "M", 5]}}
    form = format.parser.form(tools, parallel=False)
    assert form is not None
    for seed in range(20):
        text = random_text(form.calls, random.Random(seed))
        ((_, arguments),) = calls_of(format.parser, text, tools)
        assert re.fullmatch("[A-Z]{3}-[0-9]+", arguments["code"])
        assert 1 <= len(arguments["short"]) <= 4
        assert arguments["choice"] in ("a b", None)
        assert arguments["wrapped"] in ("S", "M", 5)


@formats
def test_the_form_leaves_optional_parameters_out_or_not(format: Format) -> None:
    tools = [tool("f", x="string", y="integer")]
    tools[0]["function"]["parameters"]["required"] = ["y"]
    form = format.parser.form(tools, parallel=False)
    assert form is not None
    texts = [random_text(form.calls, random.Random(seed)) for seed in range(20)]
    keys = {tuple(arguments) for text in texts for _, arguments in calls_of(format.parser, text)}
    assert keys == {("x", "y"), ("y",)}
