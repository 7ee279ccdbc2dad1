"""Each field that OpenAI, Anthropic or vLLM document has a verdict on its route."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from anthropic.types import (
    MessageCountTokensParams,
    MessageParam,
    OutputConfigParam,
    TextBlockParam,
    message_create_params,
)
from openai.types import completion_create_params
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import (
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
    ChatCompletionStreamOptionsParam,
)
from openai.types.chat import completion_create_params as chat_create_params
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

from markdown import ROOT, rows
from octavo.errors import MessageError
from octavo.server.errors import HttpError, reply_to
from octavo.server.protocol import (
    chat,
    completions,
    messages,
    response_items,
    responses,
    tokenize,
    transcriptions,
)
from octavo.server.protocol.conversation import plain_messages
from octavo.server.protocol.fields import FieldTable, read_body
from octavo.server.protocol.usage import StreamOptions

VLLM_SAMPLING = """
    top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output
    ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    allowed_token_ids bad_words use_beam_search prompt_logprobs seed logits_processors
    structured_outputs guided_json guided_regex guided_choice guided_grammar structural_tag
    guided_decoding_backend guided_whitespace_pattern response_format priority request_id cache_salt
    return_tokens_as_token_ids return_token_ids kv_transfer_params vllm_xargs repetition_detection
    add_special_tokens session_id stream_interval ec_transfer_params logprob_token_ids watermarking
    truncation_side routed_experts_prompt_start return_token_offsets return_mm_kwargs
"""
VLLM_CHAT = """
    echo add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
    mm_processor_kwargs media_io_kwargs include_reasoning thinking_token_budget reasoning_effort
    max_tokens max_completion_tokens return_prompt_text
"""
VLLM_RESPONSES = """
    request_id mm_processor_kwargs priority cache_salt enable_response_messages
    previous_input_messages previous_response structured_outputs repetition_penalty seed stop
    ignore_eos vllm_xargs kv_transfer_params skip_special_tokens include_stop_str_in_output
    logit_bias presence_penalty frequency_penalty top_k chat_template_kwargs
"""
VLLM_MESSAGES = " chat_template_kwargs kv_transfer_params"
OLDER_ANTHROPIC = "temperature top_p top_k mcp_servers context_management output_format stream"
VLLM_TRANSLATIONS = """
    language to_language stream stream_include_usage stream_continuous_usage_stats seed
    max_completion_tokens hotwords use_beam_search n length_penalty
"""
VLLM_TRANSCRIPTIONS = """
    to_language stream_include_usage stream_continuous_usage_stats vllm_xargs top_p top_k min_p seed
    frequency_penalty repetition_penalty presence_penalty max_completion_tokens hotwords
    use_beam_search n length_penalty
"""
TOKENIZE = """
    model prompt messages add_special_tokens return_token_strs add_generation_prompt tools
    continue_final_message chat_template chat_template_kwargs mm_processor_kwargs
"""


def names(*kinds: Any, more: str = "") -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)} | set(more.split())


ROUTES = {
    "chat": (
        chat.ChatRequest,
        chat.CHAT_FIELDS,
        names(chat_create_params.CompletionCreateParamsStreaming, more=VLLM_SAMPLING + VLLM_CHAT),
    ),
    "completions": (
        completions.CompletionRequest,
        completions.COMPLETION_FIELDS,
        names(
            completion_create_params.CompletionCreateParamsStreaming,
            more=VLLM_SAMPLING + "prompt_embeds suffix best_of",
        ),
    ),
    "responses": (
        responses.ResponseRequest,
        responses.RESPONSE_FIELDS,
        names(response_create_params.ResponseCreateParamsStreaming, more=VLLM_RESPONSES),
    ),
    "messages": (
        messages.MessageRequest,
        messages.MESSAGE_FIELDS,
        names(
            message_create_params.MessageCreateParamsStreaming, more=OLDER_ANTHROPIC + VLLM_MESSAGES
        ),
    ),
    "count_tokens": (
        messages.CountRequest,
        messages.COUNT_FIELDS,
        names(MessageCountTokensParams, more=VLLM_MESSAGES),
    ),
    "transcriptions": (
        transcriptions.TranscriptionRequest,
        transcriptions.TRANSCRIPTION_FIELDS,
        names(
            transcription_create_params.TranscriptionCreateParamsStreaming, more=VLLM_TRANSCRIPTIONS
        ),
    ),
    "translations": (
        transcriptions.TranslationRequest,
        transcriptions.TRANSLATION_FIELDS,
        names(translation_create_params.TranslationCreateParams, more=VLLM_TRANSLATIONS),
    ),
    "tokenize": (tokenize.TokenizeRequest, tokenize.TOKENIZE_FIELDS, names(more=TOKENIZE)),
    "detokenize": (
        tokenize.DetokenizeRequest,
        tokenize.DETOKENIZE_FIELDS,
        names(more="model tokens"),
    ),
}


def verdicts(kind: type[msgspec.Struct], table: FieldTable, name: str) -> int:
    works = name in {field.encode_name for field in msgspec.structs.fields(kind)}
    return works + (name in table.no_effect) + (name in table.refused)


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
    if name in table.no_effect:
        return "no effect"
    return "refused" if name in table.refused else ""


def test_the_page_has_the_verdicts_that_the_routes_give() -> None:
    tables = [ROUTES[route][:2] for route in VERDICTS]
    every = {n for kind, t in tables for n in (*kind.__struct_fields__, *t.no_effect, *t.refused)}
    wanted = [[f"`{n}`", *(verdict(route, n) for route in VERDICTS)] for n in sorted(every)]
    assert rows(ROOT / "docs" / "server.md", "Fields") == wanted


@pytest.mark.parametrize("route", ROUTES)
def test_no_field_has_two_verdicts(route) -> None:
    kind, table, _ = ROUTES[route]
    every = {*kind.__struct_fields__, *table.no_effect, *table.refused}
    assert {name for name in every if verdicts(kind, table, name) != 1} == set()


@pytest.mark.parametrize(
    ("name", "nothing", "something"),
    [
        ("use_beam_search", False, True),
        ("logits_processors", [], ["x"]),
        ("length_penalty", 1, 2),
        ("truncation_side", "left", "right"),
        ("watermarking", False, True),
        ("routed_experts_prompt_start", 0, 1),
    ],
)
def test_a_field_that_is_refused_may_ask_for_nothing(name, nothing, something) -> None:
    kind, table, _ = ROUTES["completions"]
    for value in (nothing, None):
        assert read_body({"prompt": "a", name: value}, kind, table, lenient=False)[1] == []
    with pytest.raises(HttpError, match=f"{name}=.* is not available"):
        read_body({"prompt": "a", name: something}, kind, table, lenient=False)


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


def chat_reader(message: dict[str, Any]) -> Any:
    return lambda: plain_messages([message])


def response_reader(item: dict[str, Any]) -> Any:
    return lambda: response_items.input_messages([item], None)


def message_reader(message: dict[str, Any]) -> Any:
    return lambda: messages.conversation(messages.CountRequest(messages=[message]))


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
def test_keys_within_that_nobody_documents_are_refused(reader, part) -> None:
    assert refusal(reader({"role": "user", "content": "a", "nonsense": 1})) == "unknown_field"
    parts = [{"type": part, "text": "a", "nonsense": 1}]
    assert refusal(reader({"role": "user", "content": parts})) == "unknown_field"


def read(body: dict[str, Any], *, lenient: bool = False) -> tuple[Any, list[str]]:
    return read_body(
        {"messages": [{"role": "user", "content": "a"}], **body},
        chat.ChatRequest,
        chat.CHAT_FIELDS,
        lenient=lenient,
    )


def test_unknown_fields_name_what_is_near() -> None:
    with pytest.raises(HttpError, match=r"temprature.*temperature") as raised:
        read({"temprature": 1})
    assert (raised.value.status, raised.value.param) == (400, "temprature")


def test_lenient_servers_warn_of_unknown_fields_and_refuse_what_they_cannot_give() -> None:
    _, warnings = read({"temprature": 1}, lenient=True)
    assert len(warnings) == 1
    assert "temprature" in warnings[0]
    with pytest.raises(HttpError, match=r"functions=.* is not available: describe them in tools"):
        read({"functions": [{}]}, lenient=True)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": None},
        {"tools": []},
        {"n": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True},
        {"response_format": {"type": "text"}},
        {"stream_options": {"include_usage": None}},
    ],
)
def test_values_that_ask_for_nothing_are_taken(body) -> None:
    assert read(body)[1] == []


@pytest.mark.parametrize(
    "body",
    [
        {"user": 5},
        {"metadata": "a"},
        {"metadata": {"a": 1}},
        {"service_tier": "best"},
        {"store": "yes"},
        {"tools": [1]},
        {"n": True},
    ],
)
def test_values_of_wrong_types_are_refused_where_they_have_no_effect_too(body) -> None:
    with pytest.raises(HttpError) as raised:
        read(body)
    assert raised.value.param == next(iter(body))
