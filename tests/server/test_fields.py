"""Each field that OpenAI, Anthropic or vLLM document has a verdict on its route."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from anthropic.types import (
    MessageParam,
    OutputConfigParam,
    TextBlockParam,
)
from openai.types.chat import (
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
    ChatCompletionStreamOptionsParam,
)
from openai.types.responses import (
    ResponseInputTextParam,
    ResponseOutputMessageParam,
    ResponseOutputTextParam,
    ResponseTextConfigParam,
    response_create_params,
)
from openai.types.responses.easy_input_message_param import EasyInputMessageParam
from openai.types.responses.response_input_item_param import Message as InputMessage
from openai.types.shared_params import Reasoning as ReasoningParam
from typing_extensions import is_typeddict

from documented_fields import ROUTES, names
from markdown import ROOT, rows
from octavo.errors import MessageError
from octavo.inputs.template import ChatTemplate
from octavo.server.apis.chat import body as chat
from octavo.server.apis.messages import body as messages
from octavo.server.apis.responses import body as responses
from octavo.server.apis.responses import items as response_items
from octavo.server.http.errors import HttpError, reply_to
from octavo.server.protocol.conversation import plain_messages
from octavo.server.protocol.fields import FieldTable, read_body
from octavo.server.protocol.notes import Notes
from octavo.server.protocol.usage import StreamOptions


def verdicts(kind: type[msgspec.Struct], table: FieldTable, name: str) -> int:
    works = name in {field.encode_name for field in msgspec.structs.fields(kind)}
    return works + (name in table.noted) + (name in table.refused)


@pytest.mark.parametrize("route", ROUTES)
def test_each_documented_field_has_one_verdict(route) -> None:
    kind, table, documented = ROUTES[route]
    assert documented
    without = {name for name in documented if verdicts(kind, table, name) != 1}
    assert without == set()


VERDICTS = ("chat", "completions", "responses", "messages")


def verdict(route: str, name: str) -> str:
    kind, table, _ = ROUTES[route]
    if name in kind.__struct_fields__:
        return "works"
    if name in table.noted:
        return "noted"
    return "refused" if name in table.refused else ""


def test_the_page_has_the_verdicts_that_the_routes_give() -> None:
    tables = [ROUTES[route][:2] for route in VERDICTS]
    every = {n for kind, t in tables for n in (*kind.__struct_fields__, *t.noted, *t.refused)}
    wanted = [[f"`{n}`", *(verdict(route, n) for route in VERDICTS)] for n in sorted(every)]
    assert rows(ROOT / "docs" / "server.md", "Fields") == wanted


@pytest.mark.parametrize("route", ROUTES)
def test_no_field_has_two_verdicts(route) -> None:
    kind, table, _ = ROUTES[route]
    every = {*kind.__struct_fields__, *table.noted, *table.refused}
    assert {name for name in every if verdicts(kind, table, name) != 1} == set()


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("early_stopping", False, True),
        ("logits_processors", [], ["x"]),
        ("watermarking", False, True),
        ("routed_experts_prompt_start", 0, 1),
    ],
)
def test_a_field_that_is_refused_may_ask_for_nothing(name, nothing, something) -> None:
    kind, table, _ = ROUTES["completions"]
    for value in (nothing, None):
        notes = Notes()
        read_body({"prompt": "a", name: value}, kind, table, notes)
        assert notes.texts() == []
    with pytest.raises(HttpError, match=f"{name}=.* is not available"):
        read_body({"prompt": "a", name: something}, kind, table, Notes())


def test_a_field_without_a_verdict_is_found() -> None:
    assert verdicts(chat.ChatRequest, chat.CHAT_FIELDS, "nonsense") == 0


@pytest.mark.parametrize(
    ("struct", "documented"),
    [
        (StreamOptions, names(ChatCompletionStreamOptionsParam, more="continuous_usage_stats")),
        (responses.ResponseStreamOptions, names(response_create_params.StreamOptions)),
        (responses.Reasoning, names(ReasoningParam)),
        (messages.OutputConfig, names(OutputConfigParam)),
        (responses.TextConfig, names(ResponseTextConfigParam)),
    ],
)
def test_objects_within_know_each_documented_key(struct, documented) -> None:
    assert documented - set(struct.__struct_fields__) == set()


def typed_dicts(kind: Any) -> list[Any]:
    if is_typeddict(kind):
        return [kind]
    return [found for each in get_args(kind) for found in typed_dicts(each)]


def role_of(kind: Any) -> str:
    return get_args(get_args(get_type_hints(kind, include_extras=True)["role"])[0])[0]


CHAT_KEYS = [
    ({"role": role_of(kind)}, key)
    for kind in typed_dicts(ChatCompletionMessageParam)
    for key in get_type_hints(kind)
]
CHAT_PARTS = [
    ({"type": kind}, key)
    for kind, parts in {
        "text": ChatCompletionContentPartTextParam,
        "refusal": ChatCompletionContentPartRefusalParam,
    }.items()
    for key in get_type_hints(parts)
]
RESPONSE_KEYS = [
    ({"role": "assistant", "content": "a"}, key)
    for kind in (EasyInputMessageParam, InputMessage, ResponseOutputMessageParam)
    for key in get_type_hints(kind)
]
RESPONSE_PARTS = [
    ({"type": kind, "text": "a"}, key)
    for kind, parts in {
        "input_text": ResponseInputTextParam,
        "output_text": ResponseOutputTextParam,
    }.items()
    for key in get_type_hints(parts)
]


def refusal(read: Any) -> str | None:
    """The code of what it raises; None when it raises nothing, or has none."""
    try:
        read()
    except (HttpError, MessageError) as error:
        return reply_to(error).code
    return None


STRICT = Notes(refuses=True)
"""In which an unknown key is an error, so that what is documented shows."""


def chat_reader(message: dict[str, Any], notes: Notes = STRICT) -> Any:
    return lambda: plain_messages([message], notes)


def response_reader(item: dict[str, Any], notes: Notes = STRICT) -> Any:
    return lambda: response_items.input_messages([item], None, notes)


def message_reader(message: dict[str, Any], notes: Notes = STRICT) -> Any:
    request = messages.CountRequest(messages=[message])
    return lambda: messages.request_messages(request, notes, lambda: ChatTemplate(""))


@pytest.mark.parametrize(("message", "key"), CHAT_KEYS)
def test_keys_of_chat_messages_are_known(message, key) -> None:
    assert refusal(chat_reader({key: "x", **message})) != "unknown_field"


@pytest.mark.parametrize(("part", "key"), CHAT_PARTS)
def test_keys_of_chat_parts_are_known(part, key) -> None:
    message = {"role": "assistant", "content": [{key: "x", **part}]}
    assert refusal(chat_reader(message)) != "unknown_field"


@pytest.mark.parametrize("key", get_type_hints(ChatCompletionMessageFunctionToolCallParam))
def test_keys_of_tool_calls_are_known(key) -> None:
    calls = [{key: {"name": "f", "arguments": "{}"} if key == "function" else "function"}]
    message = {"role": "assistant", "tool_calls": calls}
    assert refusal(chat_reader(message)) is None


@pytest.mark.parametrize(("item", "key"), RESPONSE_KEYS)
def test_keys_of_response_items_are_known(item, key) -> None:
    assert refusal(response_reader({key: "message", **item})) is None


@pytest.mark.parametrize(("part", "key"), RESPONSE_PARTS)
def test_keys_of_response_parts_are_known(part, key) -> None:
    item = {"role": "user", "content": [{key: [], **part}]}
    assert refusal(response_reader(item)) is None


@pytest.mark.parametrize("key", get_type_hints(TextBlockParam))
def test_keys_of_anthropics_blocks_are_known(key) -> None:
    block = {key: [], "type": "text", "text": "a"}
    assert refusal(message_reader({"role": "user", "content": [block]})) is None


def test_keys_of_anthropics_messages_are_known() -> None:
    documented = {key for kind in typed_dicts(MessageParam) for key in get_type_hints(kind)}
    assert documented == {"role", "content"}


@pytest.mark.parametrize(
    ("reader", "part"),
    [(chat_reader, "text"), (response_reader, "input_text"), (message_reader, "text")],
)
def test_keys_within_that_nobody_documents_are_noted_or_refused(reader, part) -> None:
    parts = [{"type": part, "text": "a", "nonsense": 1}]
    for message, path in (
        ({"role": "user", "content": "a", "nonsense": 1}, ".nonsense"),
        ({"role": "user", "content": parts}, ".content.nonsense"),
    ):
        assert refusal(reader(message)) == "unknown_field"
        notes = Notes()
        assert refusal(reader(message, notes)) is None
        (note,) = notes
        assert note.path.endswith(path)
        assert not note.is_listed
    slip = {"role": "user", "contents": "a"}
    assert refusal(reader(slip, Notes())) == "unknown_field"


def read(body: dict[str, Any], *, refuses: bool = False) -> list[str]:
    """The notes of a chat request."""
    notes = Notes(refuses=refuses)
    body = {"messages": [{"role": "user", "content": "a"}], **body}
    read_body(body, chat.ChatRequest, chat.CHAT_FIELDS, notes)
    return notes.texts()


@pytest.mark.parametrize("refuses", [False, True])
def test_fields_that_are_almost_known_are_refused_with_the_name(refuses) -> None:
    with pytest.raises(HttpError, match=r"temprature.*temperature") as raised:
        read({"temprature": 1}, refuses=refuses)
    assert (raised.value.status, raised.value.param) == (400, "temprature")


@pytest.mark.parametrize("refuses", [False, True])
def test_what_cannot_be_given_is_refused_in_both_modes(refuses) -> None:
    with pytest.raises(HttpError, match=r"moderation=.* is not available: no moderation is part"):
        read({"moderation": {}}, refuses=refuses)


def test_unknown_fields_are_noted_unless_the_server_refuses_them() -> None:
    (told,) = read({"nonsense": 1})
    assert "nonsense" in told
    with pytest.raises(HttpError, match="nonsense"):
        read({"nonsense": 1}, refuses=True)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": None},
        {"tools": []},
        {"n": None},
        {"metadata": {}, "store": False, "service_tier": "auto"},
        {"response_format": {"type": "text"}},
        {"stream_options": {"include_usage": None}},
    ],
)
def test_values_that_ask_for_nothing_are_taken(body) -> None:
    assert read(body) == []


@pytest.mark.parametrize(
    "body",
    [
        {"user": 5},
        {"metadata": "a"},
        {"service_tier": 1},
        {"store": "yes"},
        {"tools": [1]},
        {"n": True},
    ],
)
def test_values_of_wrong_types_are_refused_where_they_have_no_effect_too(body) -> None:
    with pytest.raises(HttpError) as raised:
        read(body)
    assert raised.value.param == next(iter(body))
