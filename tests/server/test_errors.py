"""Every refusal names the field to blame, as the route that was asked calls it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.errors import (
    BadRequestError,
    ConfigError,
    EngineDeadError,
    OctavoError,
    ParameterError,
    PluginError,
    PromptTooLongError,
    QueueFullError,
    RequestFailedError,
    UnknownNameError,
    UnsupportedConstraint,
    error_class,
)
from octavo.inputs.chat import ChatRenderer
from octavo.inputs.conversation import Conversation
from octavo.inputs.processor import InputProcessor
from octavo.inputs.prompt import check_token_ids
from octavo.params import GuidedParams, SamplingParams
from octavo.server.http.errors import HttpError, full_reply_to, reply_to

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
PROCESSOR = InputProcessor(None, max_model_len=8, vocab_size=10)
RENDERER = ChatRenderer(None, chat_template="{{ messages[0].content }}")


def sampled(**given: Any) -> Callable[[], object]:
    return lambda: PROCESSOR.process("r", [5], SamplingParams(**given))


def prompted(prompt: Any, **given: Any) -> Callable[[], object]:
    return lambda: PROCESSOR.process(**{"request_id": "r", "prompt": prompt, **given})


def rendered(messages: Any = HELLO, **given: Any) -> Callable[[], object]:
    return lambda: RENDERER.render(Conversation(messages=messages, strict=True, **given))


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


REFUSALS = [
    *[(sampled(**{name: value}), name) for name, value in {
        "n": 0, "temperature": "hot", "top_p": 0.0, "top_k": -2, "min_p": 2, "seed": 2**64,
        "max_tokens": 0, "min_tokens": 17, "logprobs": 11, "prompt_logprobs": -1,
        "presence_penalty": 3, "frequency_penalty": -3, "repetition_penalty": 0,
        "truncate_prompt_tokens": 0, "ignore_eos": 1, "output_kind": "all",
        "stop": "", "stop_token_ids": [10], "logit_bias": {5: 101}, "bad_words": ["a"],
        "allowed_token_ids": [], "extra_args": {1: 2}, "guided": GuidedParams(regex="a"),
    }.items()],
    (sampled(stop=["a"] * 17), "stop"),
    (sampled(stop="a", detokenize=False), "stop"),
    (sampled(stop="a"), "stop"),
    (sampled(stop_token_ids=[-1]), "stop_token_ids"),
    (sampled(stop_token_ids=[1] * 65), "stop_token_ids"),
    (sampled(logit_bias={-1: 0.0}), "logit_bias"),
    (sampled(logit_bias={11: 0.0}), "logit_bias"),
    (sampled(min_tokens=9, max_tokens=None), "min_tokens"),
    (sampled(allowed_token_ids=[1], min_tokens=1, stop_token_ids=[1]), "allowed_token_ids"),
    (lambda: GuidedParams(), "guided"),
    (prompted([]), "prompt"),
    (prompted([5] * 8), "prompt"),
    (prompted([10]), "prompt"),
    (prompted("text"), "prompt"),
    (prompted({"temperature": 1}), "prompt"),
    (prompted([5], priority=1), "priority"),
    (prompted([5], priority=2**40), "priority"),
    (prompted([5], cache_salt="a b"), "cache_salt"),
    (prompted([5], request_id="temperature\n"), "request_id"),
    (lambda: check_token_ids([10], 10, name="tokens"), "tokens"),
    (rendered([]), "messages"),
    (rendered(["seed"]), "messages"),
    (rendered([{"role": 5}]), "messages"),
    (rendered([{"role": "wizard", "content": "a"}]), "messages"),
    (rendered(user(None)), "messages"),
    (rendered(user([{"type": "n"}])), "messages"),
    (rendered(user([{"type": "image_url"}])), "messages"),
    (rendered([{"role": "assistant", "tool_calls": "stop"}]), "messages"),
    (rendered([{"role": "user", "content": object()}]), "messages"),
    (rendered([{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]), "messages"),
    (rendered(continue_final_message=True, add_generation_prompt=True), "add_generation_prompt"),
    (rendered([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}],
              continue_final_message=True), "continue_final_message"),
    (rendered(chat_template="{{"), "chat_template"),
    (rendered(chat_template=5), "chat_template"),
    (rendered(chat_template="{{ raise_exception('no stop') }}"), "messages"),
    (rendered(chat_template="{{ 1 / 0 }}"), "messages"),
    (rendered(chat_template_kwargs={"seed": 1}), "chat_template_kwargs"),
    (rendered(chat_template_kwargs={"messages": 1}), "chat_template_kwargs"),
    (rendered(chat_template_kwargs=5), "chat_template_kwargs"),
    (rendered(documents="a"), "documents"),
    (rendered(documents=[{"text": "a"}]), "documents"),
    (rendered(documents=["a"]), "documents"),
    (rendered(tools=[{"stop": 1}]), "tools"),
    (lambda: ChatRenderer(None).render(Conversation(messages=HELLO)), "chat_template"),
]  # fmt: skip


def raised_by(refused: Callable[[], object]) -> BadRequestError:
    with pytest.raises(BadRequestError) as raised:
        refused()
    return raised.value


@pytest.mark.parametrize(("refused", "param"), REFUSALS)
def test_a_refusal_names_the_field_whatever_words_its_message_has(refused, param) -> None:
    error = raised_by(refused)
    reply = reply_to(error, COMPLETIONS)
    over_http = {"extra_args": "vllm_xargs"}.get(param, param)
    assert (reply.status, reply.param) == (400, over_http)
    assert reply.message == str(error).replace("extra_args", "vllm_xargs")
    as_chat = "messages" if param == "prompt" else over_http
    assert reply_to(error, CHAT).body()["error"]["param"] == as_chat
    names = {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens",
             "logprobs": "top_logprobs", "extra_args": "vllm_xargs"}  # fmt: skip
    assert reply_to(error, f"/llm{RESPONSES}").param == names.get(param, param)
    assert set(reply_to(error, "/v1/messages").body()["error"]) == {"message", "type"}


@pytest.mark.parametrize(
    "module",
    ["params", "inputs/sampling", "inputs/processor", "frontend/thread", "detokenizing/processor"],
)
def test_no_parameter_is_refused_without_its_name(module) -> None:
    source = (Path(octavo.__file__).parent / f"{module}.py").read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    refusals = [call for call in calls if ast.unparse(call.func) == "ParameterError"]
    assert refusals
    unnamed = [call.lineno for call in refusals if "param" not in {k.arg for k in call.keywords}]
    assert unnamed == []


ANSWERS: list[tuple[Exception, int, str | None, int | None]] = [
    (ParameterError("x", param="n"), 400, None, None),
    (UnsupportedConstraint("x"), 400, None, None),
    (PromptTooLongError("x"), 400, "context_length_exceeded", None),
    (ConfigError("x"), 400, None, None),
    (UnknownNameError("x"), 400, None, None),
    (HttpError(404, "x", code="model_not_found"), 404, "model_not_found", None),
    (QueueFullError("x"), 503, "overloaded", 1),
    (EngineDeadError("x"), 503, "engine_dead", 5),
    (RequestFailedError("x"), 500, None, None),
    (OctavoError("x"), 400, None, None),
    (PluginError("plugin 'x' failed"), 500, None, None),
    (KeyError("x"), 500, None, None),
]


@pytest.mark.parametrize(("error", "status", "code", "seconds"), ANSWERS)
def test_who_owns_the_process_reads_what_clients_may_not(error, status, code, seconds) -> None:
    told, full = reply_to(error), full_reply_to(error)
    for reply in (told, full):
        assert (reply.status, reply.code, reply.retry_after) == (status, code, seconds)
    assert full.message == str(error)
    is_ours = isinstance(error, RequestFailedError | EngineDeadError) or status == 500
    assert (told.message == str(error)) is not is_ours


def test_a_client_is_told_which_plugin_has_failed_and_no_more() -> None:
    error = PluginError("plugin 'my_plugin' failed in a call: KeyError: '/etc/secret'")
    told = reply_to(error)
    assert (
        told.message == "plugin 'my_plugin' has failed inside the server, whose log has the cause"
    )


def test_what_a_plugin_refuses_by_an_error_of_its_own_is_the_request_s_mistake() -> None:
    class OwnError(OctavoError):
        """A class of a plugin's module."""

    assert reply_to(OwnError("no")).status == 400


@pytest.mark.parametrize(
    ("kind", "param"),
    [("PromptError", "prompt"), ("MessageError", "messages"), ("UnsupportedConstraint", "guided")],
)
def test_a_class_that_comes_from_the_engine_brings_its_field(kind, param) -> None:
    assert reply_to(error_class(kind)("what the engine said")).param == param


def test_a_message_is_short_and_plain_whatever_it_quotes() -> None:
    told = reply_to(
        HttpError(400, "no parser " + "x\x1b[31m\u202e" * 50_000 + "; known: a")
    ).message
    assert len(told) < 1100
    assert told.startswith("no parser x?[31m?x?")
    assert told.endswith("; known: a")
    assert reply_to(HttpError(400, "line 1\nline 2")).message == "line 1\nline 2"


NAMES = [
    ("/v1/messages", "stop has 17 entries", "stop_sequences has 17 entries"),
    ("/v1/messages", "tools[2].function.parameters=3 must", "tools[2].input_schema=3 must"),
    ("/v1/messages", "tools[0].function.name='' must", "tools[0].name='' must"),
    ("/v1/messages", "a; shorten it, or set truncate_prompt_tokens=9 or less", "a; shorten it"),
    ("/v1/messages", "max_tokens=5 is", "max_tokens=5 is"),
    ("/v1/responses", "above max_tokens=4", "above max_output_tokens=4"),
    ("/v1/responses", "tools[1].function.parameters must", "tools[1].parameters must"),
    ("/v1/responses", "messages[3].content[0]: no image", "input: no image"),
    ("/v1/responses", "messages[0].role is 5", "input: role is 5"),
    ("/v1/responses", "messages[0].tool_calls[0].function.arguments is", "input: arguments is"),
    ("/v1/responses", "prompt must be text", "input must be text"),
    ("/v1/responses", "the prompt has 5 tokens", "the prompt has 5 tokens"),
    ("/v1/chat/completions", "prompt must be text", "messages must be text"),
    ("/v1/chat/completions", "tools[1].function.name is", "tools[1].function.name is"),
    ("/v1/completions", "extra_args['a']=1 must", "vllm_xargs['a']=1 must"),
    ("/v1/completions", "stop has 17 entries", "stop has 17 entries"),
    ("/v1/completions", "cannot read <_io.BytesIO object at 0x7f0000000000>", "cannot read"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "said", "told"), NAMES)
def test_an_error_has_no_name_that_its_route_does_not_know(path, said, told) -> None:
    assert reply_to(BadRequestError(said), path).message == told
    if "<" not in said:
        assert reply_to(HttpError(400, said), path).message == said


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 2000}]}),
        ("/v1/responses", {"input": "a " * 2000}),
        ("/v1/completions", {"prompt": "a " * 2000}),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": "a " * 2000}]},
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_told_in_words_that_clients_act_on(http, path, body) -> None:
    """They are what coding agents look for before they shorten a conversation."""
    reply = http.post(path, json=body)
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*1023 maximum", message)
    assert "this model's maximum context length is 1024 tokens" in message
    assert ("truncate_prompt_tokens" in message) == (path != "/v1/messages")
