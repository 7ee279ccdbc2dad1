from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from octavo_plugins.tool_parsers.deepseek_v32.parser import DeepseekV32Parser
from octavo_plugins.tool_parsers.glm45.parser import Glm45Parser
from octavo_plugins.tool_parsers.minimax_m2.parser import MinimaxM2Parser
from octavo_plugins.tool_parsers.qwen3_coder.parser import Qwen3CoderParser
from octavo_plugins.tool_parsers.seed_oss.parser import SeedOssParser
from octavo_plugins.tool_parsers.step3.parser import Step3Parser
from tag_formats import (
    BY_NAME,
    Format,
    calls_of,
    damaged_messages,
    formats,
    tools_of,
    typed_messages,
)
from tool_parsers import (
    Call,
    Part,
    assert_cuts_do_not_matter,
    assert_form_is_read_back,
    assert_no_text_is_lost,
    assert_reads_back,
    parse,
    quick,
    tool,
)


@formats
def test_what_the_chat_template_writes_is_read_back(format: Format) -> None:
    @quick
    @given(typed_messages(format))
    def check(parts: list[Part]) -> None:
        assert_reads_back(format.parser, format.text(parts), parts, tools_of(parts))

    check()


@formats
def test_faulty_text_is_read_evenly_and_none_is_lost(format: Format) -> None:
    @quick
    @given(damaged_messages(format))
    def check(text_and_tools: tuple[str, list[dict[str, Any]]]) -> None:
        assert_cuts_do_not_matter(format.parser, *text_and_tools)
        assert_no_text_is_lost(format.parser, *text_and_tools)

    check()


@formats
def test_all_that_the_form_admits_is_read_back(format: Format) -> None:
    assert_form_is_read_back(format.parser)


# -- texts of documentation and of models --------------------------------------------------------


@formats
def test_text_around_calls_is_content_as_it_was_written(format: Format) -> None:
    call = format.render(Call("f", {"x": "a"}))
    text = f"Before. \n\n{call}\n\nbetween\n{call}\n{call} After.\n"
    message = parse(format.parser, text)
    assert message.content == "Before. \n\n\n\nbetween\n After.\n"
    assert [call.name for call in message.tool_calls] == ["f"] * 3


@formats
@pytest.mark.parametrize("text", ["{}, or so", "{}", "{}\n", "{}{} {}\n\n{}."])
def test_a_closing_tag_that_no_tag_follows_is_a_part_of_the_value(
    format: Format, text: str
) -> None:
    text = f"write {text.replace('{}', format.closing)}"
    rendered = format.render(Call("f", {"x": text, "y": "z"}))
    assert calls_of(format.parser, rendered) == [("f", {"x": text, "y": "z"})]


@formats
def test_a_call_cut_short_keeps_what_came_of_its_arguments(format: Format) -> None:
    rendered = format.render(Call("f", {"x": "some text", "y": "b"}))
    message = parse(format.parser, rendered[: rendered.index(" text") + 3])
    assert message.content is None
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"x": "some te')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=get_weather\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call></tool_call>"),
        ("qwen3_coder", "Write <function=NAME> and then the parameters."),
        ("seed_oss", "<seed:tool_call>\n<function=broken</function>\n</seed:tool_call>"),
        ("minimax_m2", "<minimax:tool_call>\nnothing here\n</minimax:tool_call>"),
        ("step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>f"),
        ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f'),
        ("glm45", "<tool_call></tool_call>"),
        ("glm45", "<tool_call>   "),
        ("glm45", "Use the <tool_call> tag to call a tool."),
    ],
)
def test_what_turns_out_to_be_no_call_is_content_with_its_tags(name: str, text: str) -> None:
    parser = BY_NAME[name].parser
    assert_cuts_do_not_matter(parser, text)
    message = parse(parser, text)
    assert (message.content, message.tool_calls) == (text, ())


def test_a_faulty_call_leaves_the_next_one_whole() -> None:
    text = (
        "<seed:tool_call>\n<function=broken</function>\n</seed:tool_call>"
        "<seed:tool_call>\n<function=f>\n<parameter=x>a</parameter>\n</function>\n</seed:tool_call>"
    )
    assert calls_of(SeedOssParser(), text) == [("f", {"x": "a"})]


def test_qwen3_coder_reads_calls_that_lack_tags() -> None:
    text = (
        "On it.\n\n<function=get_weather>\n<parameter=city>\nDallas\n<parameter=state>\nTX\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</tool_call>"
    )
    calls = [("get_weather", {"city": "Dallas", "state": "TX"}), ("now", {})]
    assert calls_of(Qwen3CoderParser(), text) == calls
    assert parse(Qwen3CoderParser(), text).content == "On it.\n\n"


def test_a_tag_behind_a_call_that_begins_no_other_is_content() -> None:
    text = (
        "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n<tool_call> was the last tag."
    )
    assert calls_of(Qwen3CoderParser(), text) == [("f", {"x": "a"})]
    assert parse(Qwen3CoderParser(), text).content == "<tool_call> was the last tag."


def test_minimax_reads_several_calls_between_one_pair_of_tags() -> None:
    text = MinimaxM2Parser.samples[1]
    tools = [tool("search_web", query_tag="array", query_list="array")]
    assert calls_of(MinimaxM2Parser(), text, tools) == [
        (
            "search_web",
            {"query_tag": ["technology", "events"], "query_list": ['"OpenAI" "latest"']},
        ),
        ("now", {}),
    ]


def test_step3_reads_calls_with_a_separator_between_and_without_their_kind() -> None:
    call = (
        '<｜tool_call_begin｜><steptml:invoke name="f"><steptml:parameter name="x">a'
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜>"
    )
    text = f"<｜tool_calls_begin｜>{call}<｜tool_sep｜>{call}<｜tool_calls_end｜>"
    assert calls_of(Step3Parser(), text) == [("f", {"x": "a"})] * 2
    assert parse(Step3Parser(), text).content is None


def test_deepseek_v32_reads_a_parameter_that_lacks_its_closing_tag() -> None:
    text = (
        '<｜DSML｜function_calls><｜DSML｜invoke name="edit"><｜DSML｜parameter name="expr" '
        'string="true">a<b><｜DSML｜parameter name="date" string="true">tomorrow'
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
    )
    assert calls_of(DeepseekV32Parser(), text) == [("edit", {"expr": "a<b>", "date": "tomorrow"})]


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({"arguments": {"place": "Rome"}}, {"place": "Rome"}),
        ({"input": '{"place": "Rome"}'}, {"place": "Rome"}),
        ({"input": {}}, {}),
        ({"input": {"other": 1}}, {"input": {"other": 1}}),
        ({"input": {"place": "Rome"}, "x": "y"}, {"input": {"place": "Rome"}, "x": "y"}),
        ({"input": "Rome"}, {"input": "Rome"}),
        ({"place": {"place": "Rome"}}, {"place": '{"place": "Rome"}'}),
    ],
)
def test_deepseek_v32_takes_arguments_out_of_a_wrapper_that_the_tool_does_not_know(
    parameters: dict[str, Any], arguments: dict[str, Any]
) -> None:
    text = BY_NAME["deepseek_v32"].render(Call("go", parameters))
    tools = [tool("go", place="string")]
    assert calls_of(DeepseekV32Parser(), text, tools) == [("go", arguments)]


def test_glm_reads_a_key_that_lacks_its_closing_tag_and_a_call_that_lacks_its_end() -> None:
    text = (
        "<tool_call>f\n<arg_key>a\n<arg_value>1</arg_value>\n"
        "<tool_call>g\n<arg_key> b </arg_key>\n<arg_value>文\n字</arg_value>\n</tool_call>"
    )
    assert calls_of(Glm45Parser(), text) == [("f", {"a": 1}), ("g", {"b": "文\n字"})]


@formats
def test_a_long_value_comes_in_pieces_and_soon(format: Format) -> None:
    rendered = format.render(Call("f", {"x": "word " * 200}))
    stream = format.parser.stream([tool("f", x={"type": ["string", "null"]})])
    deltas = [stream.feed(piece) for piece in rendered]
    assert sum(any(delta.arguments for delta in each) for each in deltas) > 900
