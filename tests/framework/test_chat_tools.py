"""What a chat asks of tools and reasoning, and how its answers are taken apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from octavo import LLM, GuidedParams, SamplingParams
from octavo.errors import BadRequestError, ParameterError, UnsupportedConstraint
from octavo.frontend.frontend import make_frontend, read_and_discover
from octavo.inputs import ChatRenderer
from octavo.model_folder import open_model
from octavo.outputs import CompletionOutput
from octavo.tools import get_reasoning_parser, get_tool_parser
from octavo.tools.answer_format import AnswerFormat, ExpectedAnswer
from octavo.tools.choice import read_tool_use
from octavo_registry import ParsedMessage, UnknownNameError
from octavo_registry.structure import Chain, JsonText, OneOf, TextUntil, Triggered
from rendered_chats import rendered


def tool(name: str, *, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    function: dict[str, Any] = {"name": name, "parameters": schema}
    return {"type": "function", "function": function | ({"strict": strict} if strict else {})}


WEATHER = tool("get_weather", city={"type": "string"})
TIME = tool("get_time", city={"type": "string"})
NAMED = {"type": "function", "function": {"name": "get_time"}}
ONLY_TIME = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [NAMED]},
}
HERMES = get_tool_parser("hermes").parser
QWEN = get_reasoning_parser("qwen3").parser


def expected(
    choice: object = None,
    *,
    tools: tuple[dict[str, Any], ...] = (WEATHER, TIME),
    parallel: bool | None = None,
    guided: GuidedParams | None = None,
    prompt: str = "",
    reasons: bool = False,
) -> ExpectedAnswer:
    form = AnswerFormat(tool_parser=HERMES, reasoning_parser=QWEN if reasons else None)
    return form.expect(prompt, read_tool_use(tools, choice, parallel), guided)


def form(*tools: dict[str, Any], parallel: bool = True) -> Any:
    made = HERMES.form(tools, parallel=parallel)
    assert made is not None
    return made


# What a request may say


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ({}, None, r"tools=\{\} must be a list"),
        ([tool(f"f{i}") for i in range(4097)], None, "tools has 4097 entries; at most 4096"),
        ([3], None, r"tools\[0\].type=3 must be 'function'"),
        ([WEATHER, {"type": "custom"}], None, r"tools\[1\].type='custom' must be 'function'"),
        ([{"type": "function"}], None, r"tools\[0\].function=None must be an object"),
        ([tool("a b")], None, r"tools\[0\].function.name='a b' must have 1 to 64 characters"),
        ([tool("a" * 65)], None, r"tools\[0\].function.name='a+' must"),
        ([WEATHER, WEATHER], None, r"tools\[1\].function.name='get_weather' is the name of two"),
        ([{"function": {"name": "f", "parameters": []}}], None, r"function.parameters=\[\] must"),
        ([{"function": {"name": "f", "strict": 1}}], None, r"function.strict=1 must be true or"),
        ([{"function": {"name": "f", "parameters": {"type": "array"}}}], None, "type 'object'"),
        ([WEATHER], "always", "tool_choice='always' must be 'none', 'auto', 'required', or"),
        ([WEATHER], {"type": "function"}, "tool_choice.function.name is missing"),
        ([WEATHER], NAMED, "tool_choice names 'get_time', which is not among the tools: get_w"),
        ([WEATHER], ONLY_TIME, "tool_choice names 'get_time'"),
        ([WEATHER], {"type": "allowed_tools"}, "tool_choice={'type': 'allowed_tools'} must be"),
        ([], "required", "tool_choice asks for a call, and there are no tools"),
        (None, NAMED, "tool_choice names 'get_time', which is not among the tools"),
    ],
)
def test_what_is_wrong_with_tools_is_named(tools, choice, message) -> None:
    with pytest.raises(ParameterError, match=message) as raised:
        read_tool_use(tools, choice, None)
    field = "tool_choice" if message.startswith("tool_choice") else "tools"
    assert raised.value.param == field


@pytest.mark.parametrize(("tools", "choice"), [(None, None), ([], "auto"), ([WEATHER], "none")])
def test_a_request_without_use_for_tools_has_none(tools, choice) -> None:
    assert read_tool_use(tools, choice, None) is None


# What a guide must hold the model to


def test_a_choice_left_to_the_model_is_not_guided() -> None:
    assert expected().guided is None
    assert expected("auto", parallel=False).guided is None


def test_a_required_call_is_nothing_but_calls() -> None:
    assert expected("required").guided == GuidedParams(structural_tag=form(WEATHER, TIME).calls)
    one = expected("required", parallel=False).guided
    assert one == GuidedParams(structural_tag=form(WEATHER, TIME, parallel=False).calls)


def test_a_named_call_is_exactly_one_of_it() -> None:
    assert expected(NAMED).guided == GuidedParams(structural_tag=form(TIME, parallel=False).calls)


def test_strict_tools_are_guided_from_the_opening_tag_on() -> None:
    strict = tool("f", strict=True, x={"type": "integer"})
    made = form(TIME, strict)
    assert expected(tools=(TIME, strict)).guided == GuidedParams(
        structural_tag=Triggered(made.triggers, (made.calls,))
    )
    one = expected(tools=(TIME, strict), parallel=False).guided
    assert one is not None
    assert one.structural_tag.most == 1


def test_of_the_allowed_tools_no_other_can_be_called() -> None:
    made = form(TIME)
    assert expected(ONLY_TIME).guided == GuidedParams(
        structural_tag=Triggered(made.triggers, (made.calls,))
    )


def test_beside_an_answer_of_a_certain_form_stand_only_calls() -> None:
    schema = {"type": "object"}
    asked = GuidedParams(json=schema, backend="llguidance")
    calls = form(WEATHER, TIME).calls
    both = OneOf((calls, JsonText(schema)))
    assert expected(guided=asked).guided == GuidedParams(structural_tag=both, backend="llguidance")
    of_content = GuidedParams(json=schema, origin="response_format")
    assert expected("required", guided=of_content).guided == GuidedParams(structural_tag=calls)
    with pytest.raises(ParameterError, match="leaves no text for it"):
        expected("required", guided=asked)
    assert expected("none", guided=asked).guided == asked
    with pytest.raises(UnsupportedConstraint, match=r"grammar cannot stand .* beside calls"):
        expected(guided=GuidedParams(grammar="start: 'a'"))


def test_what_is_demanded_begins_behind_the_reasoning() -> None:
    open_prompt = "<|im_start|>assistant\n<think>\n"
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    asked = GuidedParams(regex="a+")
    behind = expected("none", guided=asked, reasons=True, prompt=open_prompt).guided
    assert behind is not None
    assert isinstance(behind.structural_tag, Chain)
    assert behind.structural_tag.parts[0] == TextUntil(("</think>",))
    assert expected("none", guided=asked, reasons=True, prompt=closed).guided == asked
    required = expected("required", reasons=True, prompt=open_prompt).guided
    assert required is not None
    assert required.structural_tag.parts[0] == TextUntil(("</think>",))
    assert required.structural_tag.parts[-1] == form(WEATHER, TIME).calls
    assert expected("auto", reasons=True, prompt=open_prompt).guided is None


class Formless:
    samples = ("",)
    markers = ()

    def form(self, tools, *, parallel):
        return None

    def stream(self, tools=None):
        return HERMES.stream(tools)


@pytest.mark.parametrize(
    ("choice", "tools", "field"),
    [
        ("required", [TIME], "tool_choice"),
        (NAMED, [TIME], "tool_choice"),
        (None, [tool("f", strict=True)], "tools"),
    ],
)
def test_a_format_that_cannot_be_demanded_is_refused_where_it_is(choice, tools, field) -> None:
    answers = AnswerFormat(tool_parser=Formless())
    with pytest.raises(UnsupportedConstraint, match="cannot be enforced") as raised:
        answers.expect("", read_tool_use(tools, choice, None), None)
    assert raised.value.param == field
    assert answers.expect("", read_tool_use([TIME], None, None), None).guided is None


def test_a_choice_of_the_models_can_be_switched_off() -> None:
    answers = AnswerFormat(tool_parser=HERMES, takes_auto=False)
    with pytest.raises(ParameterError, match="enable_auto_tool_choice"):
        answers.expect("", read_tool_use([TIME], None, None), None)
    assert answers.expect("", read_tool_use([TIME], "required", None), None).guided is not None


def test_special_tokens_of_the_formats_are_kept() -> None:
    assert expected(reasons=True).markers == (*QWEN.markers, *HERMES.markers)
    assert expected("none").markers == ()


# Arguments in templates


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("call.function.arguments | tojson", '{"city": "Zürich"}'),
        ("call.function.arguments", '{"city": "Zürich"}'),
        ("'x' + call.function.arguments", 'x{"city": "Zürich"}'),
        ("call.function.arguments.city", "Zürich"),
        ("call.function.arguments | items | list | length", "1"),
    ],
)
@pytest.mark.parametrize("given", [{"city": "Zürich"}, '{"city": "Zürich"}'])
def test_arguments_reach_a_template_in_the_form_that_it_takes(expression, shown, given) -> None:
    source = (
        "{% for m in messages %}{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
        "{{ EXPRESSION }}{% endfor %}{% endfor %}"
    ).replace("EXPRESSION", expression)
    function = {"name": "f", "arguments": given}
    chat = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    assert rendered(ChatRenderer(None, chat_template=source), chat) == shown


# Offline, with a model


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("octavo/tiny", dtype="float32", num_threads=1) as made:
        yield made


QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=100)


def chat(llm: LLM, **options: Any) -> CompletionOutput:
    params = options.pop("params", GREEDY)
    (reply,) = llm.chat(QUESTION, params, use_tqdm=False, **{"tools": [WEATHER, TIME]} | options)
    assert reply.error is None
    return reply.outputs[0]


@pytest.mark.slow
def test_a_chats_message_has_its_calls(llm: LLM) -> None:
    message = chat(llm).message
    assert message is not None
    (call,) = message.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert call.id
    assert message.content is None
    assert chat(llm, tools=None).message is None
    assert chat(llm, tool_choice="none").message is None


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_demanded_call_validates(llm: LLM, choice) -> None:
    params = SamplingParams(temperature=1, max_tokens=200, n=8, seed=0)
    (reply,) = llm.chat(QUESTION, params, tools=[WEATHER, TIME], tool_choice=choice, use_tqdm=False)
    finished = [each for each in reply.outputs if each.finish_reason == "stop"]
    assert finished
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in (WEATHER, TIME)}
    for each in finished:
        assert each.message is not None
        assert each.message.content is None
        for call in each.message.tool_calls:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        if choice == NAMED:
            assert [call.name for call in each.message.tool_calls] == ["get_time"]


@pytest.mark.slow
def test_a_schema_that_cannot_be_enforced_is_the_tools_fault(llm: LLM) -> None:
    odd = tool("f", x={"type": "string", "contentMediaType": "image/png", "$vocabulary": 3})
    odd["function"]["parameters"]["properties"]["y"] = {"$dynamicRef": "#nowhere"}
    with pytest.raises(BadRequestError) as raised:
        chat(llm, tools=[odd], tool_choice="required")
    assert raised.value.param == "tools"


@pytest.mark.slow
def test_strict_tools_are_called_as_the_others_are(llm: LLM) -> None:
    strict = tool("get_weather", strict=True, city={"type": "string"})
    message = chat(llm, tools=[strict, TIME]).message
    assert message is not None
    assert [call.name for call in message.tool_calls] == ["get_weather"]


def test_a_model_whose_format_is_unknown_takes_no_tools() -> None:
    answers = AnswerFormat(without_parser="tools: how this model writes calls is not known")
    with pytest.raises(UnsupportedConstraint, match="not known") as raised:
        answers.expect("", read_tool_use([TIME], None, None), None)
    assert raised.value.param == "tools"
    assert answers.expect("", None, None).guided is None


@pytest.mark.slow
def test_tools_beside_a_constraint_give_calls_or_what_it_admits(llm: LLM) -> None:
    for question in ("What is the weather in Paris?", "Hello!"):
        params = SamplingParams(
            temperature=1, seed=1, n=6, max_tokens=80, guided=GuidedParams(choice=("yes", "no"))
        )
        (reply,) = llm.chat(
            [{"role": "user", "content": question}],
            params,
            tools=[WEATHER, TIME],
            use_tqdm=False,
        )
        for each in reply.outputs:
            assert each.message is not None
            if each.finish_reason == "stop":
                assert bool(each.message.tool_calls) != (each.message.content in ("yes", "no"))


@pytest.mark.slow
def test_parameters_without_number_are_refused_and_the_next_request_is_answered() -> None:
    many = tool("f", strict=True, **{f"p{i}": {"type": "integer"} for i in range(3000)})
    options = {"dtype": "float32", "num_threads": 1, "tool_call_parser": "pythonic"}
    with LLM("octavo/tiny", **options) as other:
        with pytest.raises(BadRequestError) as raised:
            chat(
                other,
                tools=[many],
                tool_choice="required",
                chat_template="{{ messages[0].content }}",
            )
        assert raised.value.param == "tools"
        assert chat(other, tool_choice="none").text


@pytest.mark.slow
def test_reasoning_that_the_prompt_has_begun_is_the_messages() -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "<think>The city is"}]
    with LLM("octavo/tiny", dtype="float32", num_threads=1, reasoning_parser="qwen3") as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        (reply,) = llm.chat(begun, params, continue_final_message=True, use_tqdm=False)
        (answer,) = reply.outputs
        assert answer.message == ParsedMessage(reasoning=answer.text)
        closed = [*QUESTION, {"role": "assistant", "content": "<think>Hm.</think>The city is"}]
        (reply,) = llm.chat(closed, params, continue_final_message=True, use_tqdm=False)
        assert reply.outputs[0].message == ParsedMessage(content=reply.outputs[0].text)
        several = SamplingParams(
            temperature=1, seed=0, n=8, max_tokens=60, guided=GuidedParams(choice=("yes", "no"))
        )
        (reply,) = llm.chat(QUESTION, several, use_tqdm=False)
        ended = [each.message for each in reply.outputs if each.finish_reason == "stop"]
        assert ended
        assert {message.content for message in ended if message} <= {"yes", "no"}
        free = SamplingParams(temperature=1, seed=0, n=8, max_tokens=60)
        (reply,) = llm.chat(QUESTION, free, tools=[TIME], tool_choice="required", use_tqdm=False)
        ended = [each.message for each in reply.outputs if each.finish_reason == "stop"]
        assert ended
        assert all(message and message.tool_calls for message in ended)


@pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_before_the_engine_starts(option) -> None:
    config, host = read_and_discover({"model": "octavo/tiny", option: "herms"}, caller="LLM()")
    with pytest.raises(UnknownNameError, match="parser named 'herms'"):
        make_frontend(
            config,
            host,
            open_model(config.model, host),
            lambda *_: pytest.fail("the engine was started"),
        )
