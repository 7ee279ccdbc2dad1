"""What goes into a chat template: forms of content, checks, where the template comes from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import sample_tokenizers
from octavo import LLM
from octavo.errors import ConfigError, PromptError
from octavo.inputs import ChatRenderer, ChatTemplate, load_chat_template
from octavo.inputs.media_parts import has_media, take_media
from octavo.multimodal.given import GivenMedia
from octavo_registry.model import ModelCapabilities
from rendered_chats import rendered

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }};{% endif %}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}{{ part.text }};{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}[{{ m.role }}]{{ show(m.content) }}{% endfor %}"
)
TEXT_CHAT = [{"role": "user", "content": "a"}]
PARTS_CHAT = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]


DEEP: list[Any] = []
DEEP.append(DEEP)


def render(template: str | None, messages: Any, **options: Any) -> str:
    return rendered(ChatRenderer(None, chat_template=template), messages, **options)


@pytest.mark.parametrize(
    ("template", "text", "parts"),
    [
        (PLAIN, "[user]a", "[user]a\nb"),
        (PARTS, "[user]a;", "[user]a;b;"),
        (EITHER, "[user]a", "[user]a;b;"),
        (PLAIN.replace("m.content", "m.content | trim"), "[user]a", "[user]a\nb"),
        (PLAIN.replace("m.content", "m.content + '!'"), "[user]a!", "[user]a\nb!"),
    ],
)
def test_content_takes_the_form_that_the_template_expects(
    template: str, text: str, parts: str
) -> None:
    assert render(template, TEXT_CHAT) == text
    assert render(template, PARTS_CHAT) == parts


def test_a_refusal_is_text() -> None:
    chat = [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]
    assert render(PLAIN, chat) == "[assistant]no"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hello", "messages must be a list"),
        ([TEXT_CHAT], r"messages\[0\] must be a dict, not list"),
        ([{"content": "a"}], r"messages\[0\].role=None"),
        ([*TEXT_CHAT, {"role": 3, "content": "a"}], r"messages\[1\].role=3"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be text .* not int"),
        ([{"role": "user", "content": ["a"]}], r"content\[0\] must be a dict with a 'type'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text=None"),
        ([{"role": "user", "content": [{"type": "txt"}]}], r"content\[0\].type='txt' is not known"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            r"messages\[0\].content\[0\]: this model takes no image input, only: text",
        ),
        ([{"role": "user", "content": "a", "x": object()}], r"messages\[0\] must be made of JSON"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], r"tool_calls must be a list, not dict"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            r"messages\[0\].tool_calls\[0\] must be a dict with a 'function' that has a 'name'",
        ),
        ([{"role": "user", "content": "a", "x": DEEP}], r"messages\[0\] must be made of JSON"),
    ],
)
def test_a_malformed_message_is_named_by_index_and_key(messages: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        render(PLAIN, messages)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"a": NaN}', {"a": math.nan}),
        *((nothing, {}) for nothing in (None, "", " \n", "null")),
        *((text, {"INVALID_JSON": text}) for text in ("[]", "[1]", "7", '"x"', '{"a": ', "a")),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
        ([1], {"INVALID_JSON": "[1]"}),
        (False, {"INVALID_JSON": "false"}),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_arguments_of_earlier_calls_are_an_object_whatever_they_were(
    arguments: Any, read: dict[str, Any], as_text: bool
) -> None:
    shown = "c.function.arguments" if as_text else "c.function.arguments | tojson"
    template = PLAIN + (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ '<' + (" + shown + ") + '>' }}{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    text = render(template, messages)
    assert str(json.loads(text.partition("<")[2].rpartition(">")[0])) == str(read)


def test_media_are_taken_out_before_a_template_sees_their_places() -> None:
    capabilities = ModelCapabilities(modalities=("image",))
    given = {"type": "image_url", "image_url": {"url": "data:,"}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}, given]}]
    plain, media = take_media(chat)
    assert [(item.modality, item.data) for item in media] == [("image", "data:,")]
    renderer = ChatRenderer(
        None,
        chat_template="{{ messages[0].content }}",
        capabilities=capabilities,
        media_texts={"image": "<picture>"},
    )
    assert rendered(renderer, plain) == "a\n<picture>"
    with pytest.raises(PromptError, match="only in a chat"):
        rendered(renderer, chat)
    without = ChatRenderer(
        None, chat_template="{{ messages[0].content }}", capabilities=capabilities
    )
    with pytest.raises(PromptError, match="no place for image"):
        rendered(without, plain)


def test_rows_are_taken_only_where_that_is_switched_on() -> None:
    chat = [{"role": "user", "content": [{"type": "image_embeds", "image_embeds": "AAAA"}]}]
    with pytest.raises(PromptError, match="image_embeds needs enable_mm_embeds"):
        take_media(chat, ("image",))
    (item,) = take_media(chat, ("image",), takes_embeds=True)[1]
    assert (item.modality, item.data, item.is_encoded) == ("image", "data:;base64,AAAA", True)
    for_text = ChatRenderer(None, chat_template=PLAIN)
    with pytest.raises(PromptError, match="this model takes no image input"):
        rendered(for_text, take_media(chat)[0])


@pytest.mark.parametrize(
    ("part", "modality"),
    [
        ({"type": "image_url"}, "image"),
        ({"type": "image_url", "image_url": None}, "image"),
        ({"type": "image"}, "image"),
        ({"type": "image_embeds"}, "image"),
        ({"type": "video_url", "video_url": None}, "video"),
        ({"type": "input_audio"}, "audio"),
        ({"type": "input_audio", "input_audio": None}, "audio"),
    ],
)
def test_a_part_with_a_uuid_may_leave_out_what_was_sent_before(part, modality) -> None:
    def taken(part: dict[str, Any]) -> GivenMedia:
        (item,) = take_media([{"role": "user", "content": [part]}], takes_embeds=True)[1]
        return item

    item = taken({**part, "uuid": "u1"})
    assert (item.modality, item.data, item.uuid) == (modality, None, "u1")
    assert item.is_encoded == (part["type"] == "image_embeds")
    for nameless in (part, {**part, "uuid": None}):
        with pytest.raises(PromptError, match=r"content\[0\].* is missing; only a uuid"):
            taken(nameless)


def test_a_part_s_uuid_names_what_is_sent_with_it() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}, "uuid": "u1"}
    (item,) = take_media([{"role": "user", "content": [part]}])[1]
    assert (item.data, item.uuid) == ("data:,", "u1")


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None])
def test_a_picture_s_detail_is_taken_and_changes_nothing(detail) -> None:
    given = {"url": "data:,", "detail": detail}
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": given}]}]
    (item,) = take_media(chat)[1]
    assert item.data == "data:,"
    for other in ("best", 1, ["low"]):
        given["detail"] = other
        with pytest.raises(PromptError, match=r"image_url.detail=.* known: auto"):
            take_media(chat)


def test_a_model_that_writes_down_speech_names_the_route_for_it() -> None:
    capabilities = ModelCapabilities(modalities=("audio",), transcriber="a.module:Transcriber")
    renderer = ChatRenderer(None, chat_template=PLAIN, capabilities=capabilities)
    with pytest.raises(PromptError, match="no place for audio; send speech to /v1/audio/transcr"):
        rendered(renderer, [{"role": "user", "content": [{"type": "audio"}]}])


def test_a_modality_of_a_plugin_has_parts_of_its_name() -> None:
    parts = [{"type": "table", "table": {"a": 1}}, {"type": "table_url", "table_url": "data:,"}]
    plain, media = take_media([{"role": "user", "content": parts}], ("table",))
    assert plain[0]["content"] == [{"type": "table"}] * 2
    assert [item.data for item in media] == [{"a": 1}, "data:,"]
    assert not has_media([{"role": "user", "content": parts}])


def test_arguments_given_as_a_json_string_are_what_they_stand_for() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    calls = [{"function": {"name": "f", "arguments": '{"city": "Bern"}'}}]
    assert render(template, [{"role": "assistant", "tool_calls": calls}]) == "Bern"
    assert calls[0]["function"]["arguments"] == '{"city": "Bern"}'  # the caller's stay as they were


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": "f"}, "tools must be a list of dicts, not str"),
        ({"tools": [len]}, r"tools\[0\] must be a dict, not builtin_function_or_method"),
        ({"documents": [1]}, r"documents\[0\] must be a dict, not int"),
        ({"chat_template_kwargs": {"messages": []}}, "may not set 'messages'"),
        ({"chat_template_kwargs": {"x": object()}}, "chat_template_kwargs must be made of JSON"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs must be a dict, not int"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs: the key 1 must be a name"),
        ({"chat_template": 5}, "chat_template must be text, not int"),
        ({"chat_template": "{% break %}"}, "no valid Jinja: SyntaxError: 'break' outside loop"),
        ({"chat_template": "{{ raise_exception('a\nb') }}"}, "refuses the messages: a b"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "add_generation_prompt and continue_final_message exclude each other",
        ),
        ({"chat_template": "{% if %}"}, "no valid Jinja, line 1"),
        ({"chat_template": "{{ 1 + 'a' }}"}, "fails on these messages: TypeError"),
        ({"chat_template": "{{ nothing.at_all }}"}, "refuses the messages: 'nothing' is undefined"),
        ({"chat_template": "{{ raise_exception('only two!') }}"}, "refuses .*: only two!"),
        ({"chat_template": "{{ ''.__class__.__mro__ }}"}, "refuses .*: access to attribute"),
        ({"chat_template": "{{ messages.append(1) }}"}, "refuses .*: .*append.* is unsafe"),
        (
            {"chat_template": "fixed{{ 1 }}", "continue_final_message": True},
            "does not show the final message's text",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        render(PLAIN, TEXT_CHAT, **options)


def test_a_variable_may_have_any_other_name() -> None:
    template = "{{ messages[0].content }}{{ self_ }}{{ me }}"
    assert render(template, TEXT_CHAT, chat_template_kwargs={"me": 1}) == "a1"
    assert render(PLAIN, TEXT_CHAT, chat_template_kwargs={"self": 1}) == "[user]a"


def test_only_a_message_with_text_can_be_continued() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    chat = [{"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(PromptError, match="no text to continue"):
        render(PLAIN, chat, continue_final_message=True)


def test_the_generation_prompt_is_the_default_unless_a_message_is_continued() -> None:
    template = PLAIN + "{% if add_generation_prompt %}>{% endif %}"
    assert render(template, TEXT_CHAT) == "[user]a>"
    assert render(template, TEXT_CHAT, continue_final_message=True) == "[user]a"


def test_a_template_comes_from_a_file_or_is_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(PLAIN, encoding="utf-8")
    assert load_chat_template(file) == load_chat_template(str(file)) == PLAIN
    assert load_chat_template(PLAIN) == PLAIN
    with pytest.raises(ConfigError, match="cannot be read as a file"):
        load_chat_template(str(tmp_path / "absent.jinja"))


def test_a_request_cannot_make_the_renderer_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    with pytest.raises(PromptError, match="shows nothing of the messages") as refused:
        render(PLAIN, TEXT_CHAT, chat_template=str(file))
    assert "for a file give load_chat_template(FILE)" in str(refused.value)


@pytest.mark.parametrize(
    "template",
    [
        "hello",
        "templates/absent.jinja",
        "",
        "{{ bos_token }}{% if messages %}Hello{% endif %}",
        "{% for m in messages %}{{ m.role }}{% endfor %}{{ messages | length }}",
        "{% for m in messages %}{% if m.role == 'nobody' %}{{ m.content }}{% endif %}{% endfor %}",
    ],
)
def test_a_template_that_drops_what_messages_say_is_refused(template: str, tmp_path: Path) -> None:
    for given in ({"chat_template": template}, {}):
        with pytest.raises(PromptError, match="shows nothing of the messages") as refused:
            render(PLAIN if given else template or " ", TEXT_CHAT, **given)
        assert refused.value.param == "chat_template"
    file = tmp_path / "template"
    file.write_text(template)
    with pytest.raises(ConfigError, match="shows nothing of the messages"):
        LLM("octavo/tiny", chat_template=str(file), load_format="dummy", max_model_len=64)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[-1].content }}",
        "{{ messages | tojson }}",
        "{{ messages[0].content | upper }}",
        "{% for m in messages %}{{ m.tool_calls or '' }}{% endfor %}",
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
    ],
)
def test_a_template_that_may_show_them_is_taken(template: str) -> None:
    render(template, [{"role": "system", "content": "a"}])


def test_without_any_template_the_error_says_how_to_give_one() -> None:
    with pytest.raises(PromptError, match="no default chat template; give chat_template="):
        render(None, TEXT_CHAT)


def test_of_named_templates_the_fitting_one_is_used(tmp_path: Path) -> None:
    named = {
        "default": "{{ messages[0].content }} plain{{ bos_token }}",
        "tool_use": "{{ messages[0].content }} tools{{ eos_token }}",
    }
    sample_tokenizers.save("byte_level", tmp_path, chat_template=named)
    renderer = ChatRenderer(sample_tokenizers.open_folder(tmp_path))
    assert rendered(renderer, TEXT_CHAT) == "a plain<s>"
    assert rendered(renderer, TEXT_CHAT, tools=[{"name": "f"}]) == "a tools</s>"
    assert rendered(renderer, TEXT_CHAT, chat_template="tool_use") == "a tools</s>"


def test_the_tokenizers_own_template_is_found(tmp_path: Path) -> None:
    sample_tokenizers.save("byte_level", tmp_path, chat_template=PLAIN)
    assert rendered(ChatRenderer(sample_tokenizers.open_folder(tmp_path)), TEXT_CHAT) == "[user]a"


def test_variables_set_in_a_generation_block_stay_in_it() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert ChatTemplate(source).render(TEXT_CHAT) == "21"
