"""The ways to ask for an answer to a chat, which take the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.errors import ParameterError
from octavo.inputs import Conversation, RequestOptions
from octavo.server.apis.chat.body import ChatRequest
from octavo.server.apis.messages.body import CountRequest
from octavo.server.apis.responses.body import ResponseRequest
from octavo.server.apis.tokenize.body import TokenizeRequest
from octavo.server.protocol.guided import TextRequest

OF_CHATS = {field.name for field in fields(Conversation)}
OF_REQUESTS = {field.name for field in fields(RequestOptions)}
CALLER = {"sampling_params", "lora_request"}
"""What a caller says besides: an adapter is a request's under its content hash."""
SERVED = OF_CHATS - {"strict"}
"""All that is served is strict."""
NAMES_ELSEWHERE: dict[type, set[str]] = {
    ChatRequest: set(),
    TokenizeRequest: {"tool_choice", "parallel_tool_calls", "mm_processor_kwargs"},
    ResponseRequest: {"messages", "documents", "chat_template"}
    | {"add_generation_prompt", "continue_final_message"},
    CountRequest: {"parallel_tool_calls", "documents", "chat_template", "mm_processor_kwargs"}
    | {"add_generation_prompt", "continue_final_message"},
}
"""What an API has in other words, or not at all."""


def keywords(call: Callable[..., Any]) -> dict[str, Parameter]:
    return {name: each for name, each in signature(call).parameters.items() if name != "self"}


def test_offline_and_async_chats_take_the_same() -> None:
    offline, asynchronous = keywords(LLM.chat), keywords(AsyncLLM.chat)
    assert asynchronous.keys() == OF_CHATS | OF_REQUESTS - {"adapter"} | CALLER
    assert offline.keys() == asynchronous.keys() | {"use_tqdm"}  # one answer has no bar
    defaults = {field.name: field.default for field in fields(Conversation)}
    for name in OF_CHATS - {"messages"}:
        assert offline[name] == asynchronous[name], name
        assert offline[name].default is defaults[name], name


@pytest.mark.parametrize("request_type", NAMES_ELSEWHERE)
def test_bodies_have_the_fields_of_a_conversation(request_type: Any) -> None:
    own = set(request_type.__struct_fields__)
    assert SERVED - own == NAMES_ELSEWHERE[request_type]


def test_bodies_have_the_options_of_a_request() -> None:
    assert OF_REQUESTS - {"adapter"} <= set(TextRequest.__struct_fields__)
    body = TextRequest(request_id="a", priority=3, cache_salt="b")
    assert body.options() == RequestOptions(request_id="a", priority=3, cache_salt="b")
    assert TextRequest().options().request_id != TextRequest().options().request_id


def test_requests_of_an_offline_chat_may_have_names(llm: LLM) -> None:
    one = SamplingParams(max_tokens=1)
    hello = [{"role": "user", "content": "Hello"}]
    for given, named in (("a", ["a"]), (["b"], ["b"])):
        outputs = llm.chat(hello, one, request_id=given, use_tqdm=False)
        assert [output.request_id for output in outputs] == named
    outputs = llm.chat([hello, hello], one, request_id=["c", "d"], use_tqdm=False)
    assert [output.request_id for output in outputs] == ["c", "d"]
    with pytest.raises(ParameterError, match="request_id has 1 entries for 2 prompts"):
        llm.chat([hello, hello], one, request_id="e", use_tqdm=False)
    with pytest.raises(ParameterError, match="an id of its own"):
        llm.chat([hello, hello], one, request_id=["e", "e"], use_tqdm=False)


@pytest.fixture(scope="module")
def llm() -> Any:
    with LLM("octavo/tiny", device="cpu") as made:
        yield made
