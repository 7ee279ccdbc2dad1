"""Each key that OpenAI's and Anthropic's types have within a body has a verdict, in both modes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import anthropic.types as anthropic_types
import openai.types.chat as chat_types
import openai.types.responses as response_types
import pytest
from anthropic.types import beta as beta_types
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.chat.chat_completion_content_part_input_audio_param import InputAudio
from openai.types.shared_params import FunctionDefinition
from typing_extensions import is_typeddict

from documented_fields import ROUTES, every_name
from octavo.errors import BadRequestError
from octavo.inputs.template import ChatTemplate
from octavo.server.apis.chat import body as chat
from octavo.server.apis.messages import body as messages
from octavo.server.apis.messages.block_messages import chat_messages
from octavo.server.apis.messages.tools import chat_tool_choice, chat_tools
from octavo.server.apis.responses import body as responses
from octavo.server.apis.responses.items import input_messages
from octavo.server.apis.responses.tools import chat_tool_choice as response_tool_choice
from octavo.server.apis.responses.tools import read_tools
from octavo.server.http.errors import HttpError, reply_to
from octavo.server.protocol.conversation import plain_messages, plain_tool_choice, plain_tools
from octavo.server.protocol.fields import read_body
from octavo.server.protocol.notes import Notes

Read = Callable[[dict[str, Any], Notes], Any]


def typed_dicts(kind: Any) -> list[Any]:
    if is_typeddict(kind):
        return [kind]
    return [found for each in get_args(kind) for found in typed_dicts(each)]


def within(name: str) -> Read:
    """A reader of the objects that a field of each API's holds."""
    kind, table, body = {
        "stream_options": (chat.ChatRequest, chat.CHAT_FIELDS, {"messages": []}),
        "reasoning": (responses.ResponseRequest, responses.RESPONSE_FIELDS, {"input": "a"}),
        "text": (responses.ResponseRequest, responses.RESPONSE_FIELDS, {"input": "a"}),
    }.get(
        name,
        (messages.MessageRequest, messages.MESSAGE_FIELDS, {"messages": [], "max_tokens": 1}),
    )
    return lambda given, notes: read_body({**body, name: given}, kind, table, notes)


def system_or_user(message: dict[str, Any], notes: Notes) -> Any:
    request = messages.CountRequest(messages=[message])
    return messages.request_messages(request, notes, lambda: ChatTemplate(""))


def user(block: dict[str, Any], notes: Notes) -> Any:
    return chat_messages("m", "user", [block], notes)


def assistant(block: dict[str, Any], notes: Notes) -> Any:
    return chat_messages("m", "assistant", [block], notes)


def chat_message(message: dict[str, Any], notes: Notes) -> Any:
    return plain_messages([message], notes)


def chat_part(part: dict[str, Any], notes: Notes) -> Any:
    return plain_messages([{"role": "user", "content": [part]}], notes)


def response_item(item: dict[str, Any], notes: Notes) -> Any:
    return input_messages([item], None, notes)


def response_part(part: dict[str, Any], notes: Notes) -> Any:
    return input_messages([{"role": "user", "content": [part]}], None, notes)


TYPES: list[tuple[str, Any, Read, dict[str, Any]]] = [
    ("chat tool", chat_types.ChatCompletionFunctionToolParam,
     lambda given, notes: plain_tools([given], notes), {"type": "function"}),
    ("chat function", FunctionDefinition,
     lambda given, notes: plain_tools([{"type": "function", "function": given}], notes), {}),
    ("chat custom tool", chat_types.ChatCompletionCustomToolParam,
     lambda given, notes: plain_tools([given], notes), {"type": "custom"}),
    ("chat choice", chat_types.ChatCompletionNamedToolChoiceParam, plain_tool_choice,
     {"type": "function"}),
    ("chat choice of several", chat_types.ChatCompletionAllowedToolChoiceParam, plain_tool_choice,
     {"type": "allowed_tools"}),
    ("image", chat_types.ChatCompletionContentPartImageParam, chat_part, {"type": "image_url"}),
    ("image's url", ImageURL,
     lambda given, notes: chat_part({"type": "image_url", "image_url": given}, notes), {}),
    ("sound", chat_types.ChatCompletionContentPartInputAudioParam, chat_part,
     {"type": "input_audio"}),
    ("sound's data", InputAudio,
     lambda given, notes: chat_part({"type": "input_audio", "input_audio": given}, notes), {}),
    ("stream options", chat_types.ChatCompletionStreamOptionsParam, within("stream_options"), {}),
    ("response tool", response_types.FunctionToolParam,
     lambda given, notes: read_tools([given], None, notes), {"type": "function"}),
    ("response namespace", response_types.NamespaceToolParam,
     lambda given, notes: read_tools([given], None, notes), {"type": "namespace"}),
    ("response choice", response_types.ToolChoiceFunctionParam, response_tool_choice,
     {"type": "function"}),
    ("response choices", response_types.ToolChoiceAllowedParam, response_tool_choice,
     {"type": "allowed_tools"}),
    ("response call", response_types.ResponseFunctionToolCallParam, response_item,
     {"type": "function_call"}),
    ("response reasoning", response_types.ResponseReasoningItemParam, response_item,
     {"type": "reasoning"}),
    ("response image", response_types.ResponseInputImageParam, response_part,
     {"type": "input_image"}),
    ("response file", response_types.ResponseInputFileParam, response_part,
     {"type": "input_file"}),
    ("response text", response_types.ResponseInputTextParam, response_part,
     {"type": "input_text"}),
    ("text", response_types.ResponseTextConfigParam, within("text"), {}),
    ("claude tool", anthropic_types.ToolParam,
     lambda given, notes: chat_tools([given], notes), {"type": "custom"}),
    ("claude beta tool", beta_types.BetaToolParam,
     lambda given, notes: chat_tools([given], notes), {"type": "custom"}),
    ("system message", anthropic_types.SystemMessageParam, system_or_user, {"role": "system"}),
    ("text block", anthropic_types.TextBlockParam, user, {"type": "text"}),
    ("image block", anthropic_types.ImageBlockParam, user, {"type": "image"}),
    ("document", anthropic_types.DocumentBlockParam, user, {"type": "document"}),
    ("search result", anthropic_types.SearchResultBlockParam, user, {"type": "search_result"}),
    ("result", beta_types.BetaToolResultBlockParam, user, {"type": "tool_result"}),
    ("call", beta_types.BetaToolUseBlockParam, assistant, {"type": "tool_use"}),
    ("thought", anthropic_types.ThinkingBlockParam, assistant, {"type": "thinking"}),
    *((f"image of a {kind}", source, lambda given, notes: user(
        {"type": "image", "source": given}, notes), {"type": kind})
      for kind, source in (("base64", anthropic_types.Base64ImageSourceParam),
                           ("url", anthropic_types.URLImageSourceParam))),
    *((f"document of a {kind}", source, lambda given, notes: user(
        {"type": "document", "source": given}, notes), {"type": kind})
      for kind, source in (("base64", anthropic_types.Base64PDFSourceParam),
                           ("text", anthropic_types.PlainTextSourceParam),
                           ("content", anthropic_types.ContentBlockSourceParam))),
    *(("claude choice", kind, chat_tool_choice, {"type": "auto"})
      for kind in typed_dicts(anthropic_types.ToolChoiceParam)),
    *(("thinking", kind, within("thinking"), {"type": "adaptive"})
      for kind in typed_dicts(beta_types.BetaThinkingConfigParam)),
    ("output config", beta_types.BetaOutputConfigParam, within("output_config"), {}),
    ("metadata", anthropic_types.MetadataParam, within("metadata"), {}),
    ("cache control", anthropic_types.CacheControlEphemeralParam, within("cache_control"),
     {"type": "ephemeral"}),
]  # fmt: skip


def verdict(read: Read, given: dict[str, Any], notes: Notes) -> str:
    """The code of the error that it is; "works" or "noted"."""
    try:
        read(given, notes)
    except (HttpError, BadRequestError) as error:
        return reply_to(error).code or "refused"
    return "noted" if notes else "works"


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    ("read", "needed", "key"),
    [
        pytest.param(read, needed, key, id=f"{name} ({kind.__name__}): {key}")
        for name, kind, read, needed in TYPES
        for key in get_type_hints(kind)
    ],
)
def test_each_documented_key_is_known(read, needed, key, refuses) -> None:
    for value in ("x", {}, [{}], True, 7):
        notes = Notes(refuses=refuses)
        assert verdict(read, {key: value, **needed}, notes) != "unknown_field"
        assert all(note.is_listed for note in notes)


class Asked(Notes):
    """Notes that learn what readers know: whether of a body or within one, and its names."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[str, frozenset[str]]] = set()

    def unknown(self, name: str, known: Collection[str], where: str = "") -> None:
        self.known.add(("within" if where else "", frozenset(known)))


def test_no_name_that_an_api_has_elsewhere_is_a_slip() -> None:
    asked, own = Asked(), {"nobodys_own": 1}
    for kind, table, _ in ROUTES.values():
        with suppress(HttpError):
            read_body(own, kind, table, asked)
    for _, _, read, needed in TYPES:
        verdict(read, own | needed, asked)
        if "type" in needed:
            verdict(response_item, own | needed, asked)
    for kind in ("text", "image_url", "file"):
        verdict(chat_part, {"type": kind, **own}, asked)
    for role in ("user", "assistant", "tool"):
        verdict(chat_message, {"role": role, **own}, asked)
        verdict(system_or_user, {"role": role, **own}, asked)
    of_bodies, within = every_name()
    slips = set()
    for where, known in asked.known:
        for name in (within if where else of_bodies) - known:
            try:
                Notes().unknown(name, known, where)
            except HttpError as error:
                slips.add((name, where, str(error)))
    assert slips == set()
    assert {where for where, _ in asked.known} == {"", "within"}
    assert len(asked.known) > 30


IDS = [f"{name}: {kind.__name__}" for name, kind, _, _ in TYPES]


@pytest.mark.parametrize(("read", "needed"), [each[2:] for each in TYPES], ids=IDS)
def test_a_key_that_nobody_documents_is_noted_or_refused(read, needed) -> None:
    given = {**needed, "nobodys_own": 1}
    notes = Notes()
    assert verdict(read, given, notes) != "unknown_field"
    if not all(note.is_listed for note in notes):  # the object itself may be noted as a whole
        assert verdict(read, given, Notes(refuses=True)) == "unknown_field"
