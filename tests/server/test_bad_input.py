"""Bad input of every kind: its own 4xx in the route's error shape, and nobody else's business."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE, INVOCATIONS = "/tokenize", "/detokenize", "/invocations"
HELLO = [{"role": "user", "content": "Hello"}]
RESULT = {"role": "tool", "content": "a"}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 4},
    RESPONSES: {"input": "Hello", "max_output_tokens": 4},
    MESSAGES: {"messages": HELLO, "max_tokens": 4},
    COUNT: {"messages": HELLO},
    TOKENIZE: {"prompt": "Hello"},
    DETOKENIZE: {"tokens": [300, 301]},
    INVOCATIONS: {"messages": HELLO, "max_tokens": 4},
}
SAMPLING = (CHAT, COMPLETIONS, RESPONSES)
TEXT = (*SAMPLING, MESSAGES)
ANY = object()


@dataclass(frozen=True)
class Bad:
    """A good body of each path, changed; ``param`` is what the error names."""

    kind: str
    change: dict[str, Any]
    param: Any = None
    """None: the first key of the change."""
    paths: tuple[str, ...] = SAMPLING
    status: int = 400
    without: tuple[str, ...] = ()
    code: Any = ANY


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


BAD = [
    # Numbers of sampling.
    Bad("temperature below zero", {"temperature": -0.1}, paths=TEXT),
    Bad("temperature too high", {"temperature": 1e9}, paths=TEXT),
    Bad("temperature as text", {"temperature": "hot"}, paths=TEXT),
    Bad("temperature as a flag", {"temperature": True}, paths=TEXT),
    Bad("temperature no float holds", {"temperature": 10**400}, paths=TEXT),
    Bad("temperature in a list", {"temperature": [1]}, paths=TEXT),
    Bad("top_p of zero", {"top_p": 0}, paths=TEXT),
    Bad("top_p above one", {"top_p": 1.01}, paths=TEXT),
    Bad("top_k below minus one", {"top_k": -2}, paths=TEXT),
    Bad("top_k no kernel takes", {"top_k": 2**31}, paths=TEXT),
    Bad("top_k with a fraction", {"top_k": 1.5}, paths=TEXT),
    Bad("min_p above one", {"min_p": 2}),
    Bad("n of zero", {"n": 0}),
    Bad("n of a million", {"n": 10**6}),
    Bad("n beyond 64 bits", {"n": 2**70}),
    Bad("n as text", {"n": "2"}),
    Bad("seed beyond 64 bits", {"seed": 2**64}),
    Bad("seed with a fraction", {"seed": 0.5}),
    Bad("presence penalty too high", {"presence_penalty": 2.1}),
    Bad("frequency penalty too low", {"frequency_penalty": -2.1}),
    Bad("repetition penalty of zero", {"repetition_penalty": 0}),
    Bad("max_tokens below zero", {"max_tokens": -1}, paths=(CHAT, COMPLETIONS, MESSAGES)),
    Bad("max_tokens of zero", {"max_tokens": 0}, paths=(CHAT, COMPLETIONS, MESSAGES)),
    Bad("max_tokens beyond the context", {"max_tokens": 1025}, paths=(CHAT, COMPLETIONS)),
    Bad("max_tokens beyond 64 bits", {"max_tokens": 2**70}, paths=(CHAT, COMPLETIONS)),
    Bad("max_output_tokens beyond the context", {"max_output_tokens": 10**9}, paths=(RESPONSES,)),
    Bad("max_tokens as text", {"max_tokens": "4"}, paths=(CHAT, COMPLETIONS, MESSAGES)),
    Bad("max_tokens with a fraction", {"max_tokens": 1.5}, paths=(CHAT, COMPLETIONS, MESSAGES)),
    Bad("max_output_tokens of zero", {"max_output_tokens": 0}, paths=(RESPONSES,)),
    Bad("max_completion_tokens of zero", {"max_completion_tokens": 0}, paths=(CHAT,),
        without=("max_tokens",)),
    Bad("min_tokens below zero", {"min_tokens": -1}),
    Bad("min_tokens above max_tokens", {"min_tokens": 5}),
    Bad("truncation to nothing", {"truncate_prompt_tokens": 0}),
    Bad("truncation to less", {"truncate_prompt_tokens": -2}),
    Bad("priority without the policy", {"priority": 1}),
    Bad("priority too high", {"priority": 2**40}),
    # Stop strings, words and ids.
    Bad("17 stop strings", {"stop": ["a"] * 17}),
    Bad("an empty stop string", {"stop": ""}),
    Bad("a long stop string", {"stop": "a" * 257}),
    Bad("stop as a number", {"stop": 5}),
    Bad("stop as a list of numbers", {"stop": [5]}),
    Bad("17 stop sequences", {"stop_sequences": ["a"] * 17}, param="stop", paths=(MESSAGES,)),
    Bad("stop ids outside the vocabulary", {"stop_token_ids": [10**6]}),
    Bad("stop ids below zero", {"stop_token_ids": [-1]}),
    Bad("stop ids as text", {"stop_token_ids": ["a"]}),
    Bad("many stop ids", {"stop_token_ids": list(range(65))}),
    Bad("bias outside the vocabulary", {"logit_bias": {"999999": 1}}),
    Bad("bias of a word", {"logit_bias": {"word": 1}}),
    Bad("bias too high", {"logit_bias": {"5": 101}}),
    Bad("bias as text", {"logit_bias": {"5": "much"}}),
    Bad("1025 biases", {"logit_bias": {str(i): 1 for i in range(1025)}}),
    Bad("257 bad words", {"bad_words": ["a"] * 257}),
    Bad("an empty bad word", {"bad_words": [""]}),
    Bad("no allowed id", {"allowed_token_ids": []}),
    Bad("allowed ids outside the vocabulary", {"allowed_token_ids": [2**40]}),
    # Logprobs.
    Bad("logprobs beyond 20", {"logprobs": 21}, paths=(COMPLETIONS,)),
    Bad("logprobs below zero", {"logprobs": -2}, paths=(COMPLETIONS,)),
    Bad("all logprobs", {"logprobs": -1}, paths=(COMPLETIONS,)),
    Bad("logprobs as a flag", {"logprobs": True}, paths=(COMPLETIONS,)),
    Bad("logprobs as a number", {"logprobs": 1}, paths=(CHAT,)),
    Bad("top_logprobs alone", {"top_logprobs": 2}, paths=(CHAT, RESPONSES)),
    Bad("top_logprobs beyond 20", {"top_logprobs": 21, "logprobs": True}, paths=(CHAT,)),
    Bad("prompt_logprobs below zero", {"prompt_logprobs": -1}, paths=(CHAT, COMPLETIONS)),
    Bad("prompt_logprobs below zero beside others", {"prompt_logprobs": -1, "logprobs": 1,
        "echo": True}, paths=(COMPLETIONS,)),
    Bad("prompt_logprobs without bound", {"prompt_logprobs": 2000}, paths=(CHAT, COMPLETIONS)),
    # Streams.
    Bad("stream as text", {"stream": "yes"}, paths=TEXT),
    Bad("options of no stream", {"stream_options": {"include_usage": True}},
        paths=(CHAT, COMPLETIONS)),
    Bad("a slip in options", {"stream_options": {"include_usages": True}, "stream": True},
        paths=(CHAT, COMPLETIONS)),
    Bad("options as a list", {"stream_options": [1], "stream": True}),
    # Prompts.
    Bad("no prompt", {}, "prompt", (COMPLETIONS,), without=("prompt",)),
    Bad("an empty prompt", {"prompt": []}, paths=(COMPLETIONS,)),
    Bad("an empty prompt among others", {"prompt": [[]]}, paths=(COMPLETIONS,)),
    Bad("prompts of a mixture", {"prompt": ["a", 5]}, paths=(COMPLETIONS,)),
    Bad("a prompt of numbers", {"prompt": [1.5]}, paths=(COMPLETIONS,)),
    Bad("a prompt of flags", {"prompt": [True]}, paths=(COMPLETIONS,)),
    Bad("a prompt as an object", {"prompt": {"a": 1}}, paths=(COMPLETIONS, TOKENIZE)),
    Bad("ids outside the vocabulary", {"prompt": [10**6]}, paths=(COMPLETIONS,)),
    Bad("ids below zero", {"prompt": [[-1]]}, paths=(COMPLETIONS,)),
    Bad("ids beyond 64 bits", {"prompt": [2**70]}, paths=(COMPLETIONS,)),
    Bad("1025 prompts", {"prompt": ["a"] * 1025}, paths=(COMPLETIONS,), code=None),
    Bad("prompts times n", {"n": 128, "prompt": ["a"] * 9}, paths=(COMPLETIONS,)),
    Bad("a prompt too long", {"prompt": "a " * 2000}, paths=(COMPLETIONS,),
        code="context_length_exceeded"),
    Bad("a prompt beyond reading", {"prompt": "a" * 200_000}, paths=(COMPLETIONS, TOKENIZE),
        code="context_length_exceeded"),
    Bad("ids too many", {"prompt": [5] * 1024}, paths=(COMPLETIONS,),
        code="context_length_exceeded"),
    Bad("a suffix", {"suffix": "b"}, paths=(COMPLETIONS,)),
    Bad("best_of", {"best_of": 2}, paths=(COMPLETIONS,)),
    Bad("half of a surrogate pair", {"prompt": "\ud800"}, paths=(COMPLETIONS, TOKENIZE)),
    Bad("half a pair in a field of no effect", {"user": "\udfff"}),
    Bad("a salt with blanks", {"cache_salt": "a b"}),
    Bad("a salt too long", {"cache_salt": "a" * 129}),
    Bad("an empty salt", {"cache_salt": ""}),
    Bad("a request id with a line break", {"request_id": "a\nb"}),
    Bad("a request id too long", {"request_id": "a" * 257}),
    # Messages.
    Bad("no messages", {}, "messages", (CHAT, MESSAGES, COUNT), without=("messages",)),
    Bad("an empty list of messages", {"messages": []}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("4,097 messages", {"messages": HELLO * 4097}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("16,385 parts", {"messages": user([{"type": "text", "text": "a"}] * 16_385)},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("ten thousand items", {"input": HELLO * 10_000}, paths=(RESPONSES,)),
    Bad("a million ids", {"prompt": [5] * 10**6}, paths=(COMPLETIONS,),
        code="context_length_exceeded"),
    Bad("messages as text", {"messages": "Hello"}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("a message as text", {"messages": ["Hello"]}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("a message without a role", {"messages": [{"content": "a"}]},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("a role as a number", {"messages": [{"role": 5, "content": "a"}]},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("an unknown role", {"messages": [{"role": "wizard", "content": "a"}]},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("a message without content", {"messages": [{"role": "user"}]},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("content as a number", {"messages": user(5)}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("content as an object", {"messages": user({"a": 1})}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("no parts", {"messages": user([])}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("a part as text", {"messages": user(["a"])}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("a part of no type", {"messages": user([{"text": "a"}])}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("a part of unknown type", {"messages": user([{"type": "smell"}])},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("a part without its text", {"messages": user([{"type": "text"}])},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("an image", {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("a slip in a message", {"messages": user("a", contents=1)},
        paths=(CHAT, MESSAGES, COUNT)),
    Bad("a name that is no text", {"messages": user("a", name=["Bob"])}, paths=(CHAT,)),
    Bad("a conversation too long", {"messages": user("a " * 2000)}, paths=(CHAT, MESSAGES)),
    Bad("tool calls as text", {"messages": [{"role": "assistant", "tool_calls": "f"}]},
        paths=(CHAT,)),
    Bad("a last message that cannot go on", {"continue_final_message": True,
        "add_generation_prompt": True}, "add_generation_prompt", (CHAT, TOKENIZE)),
    Bad("a template of a stranger", {"chat_template": "{{ 1 }}"}, paths=(CHAT,)),
    Bad("a slip in the template's words", {"chat_template_kwargs": {"add_generation_promt": 1}},
        paths=(CHAT, RESPONSES, MESSAGES, COUNT)),
    Bad("template words that are taken", {"chat_template_kwargs": {"messages": []}},
        paths=(CHAT, RESPONSES, MESSAGES, COUNT)),
    Bad("documents for no template", {"documents": [{"text": "a"}]}, paths=(CHAT,)),
    *[Bad(f"a call with {what}", {"messages": [{"role": "assistant", "tool_calls": [
        {"id": "1", "function": {"name": "f"}} | change]}, RESULT]}, paths=(CHAT,))
        for what, change in {"an id that is no text": {"id": 1},
            "an index that is none": {"index": "x"}, "no name": {"function": {}}}.items()],
    Bad("a hint that is none", {"messages": user([
        {"type": "text", "text": "a", "cache_control": 1}])}, paths=(CHAT, MESSAGES, COUNT)),
    Bad("documents as text", {"documents": "a"}, paths=(CHAT,)),
    Bad("an effort that is no word", {"reasoning_effort": 3}, paths=(CHAT,)),
    Bad("system as a number", {"system": 5}, paths=(MESSAGES, COUNT)),
    Bad("system as an image", {"system": [{"type": "image"}]}, paths=(MESSAGES, COUNT)),
    Bad("no max_tokens", {}, "max_tokens", (MESSAGES,), without=("max_tokens",)),
    # Responses.
    Bad("no input", {}, "input", (RESPONSES,), without=("input",)),
    Bad("an empty input", {"input": []}, paths=(RESPONSES,)),
    Bad("input as a number", {"input": 5}, paths=(RESPONSES,)),
    Bad("an item as text", {"input": ["a"]}, paths=(RESPONSES,)),
    Bad("an item of unknown type", {"input": [{"type": "web_search_call"}]}, paths=(RESPONSES,)),
    Bad("an image as input", {"input": user([{"type": "input_image"}])}, paths=(RESPONSES,)),
    Bad("an include that is no word", {"include": [1]}, paths=(RESPONSES,)),
    Bad("17 keys of metadata", {"metadata": {str(i): "a" for i in range(17)}}, paths=(RESPONSES,)),
    Bad("metadata that is long", {"metadata": {"a": "a" * 513}}, paths=(RESPONSES,)),
    Bad("metadata of numbers", {"metadata": {"a": 1}}, paths=(RESPONSES,)),
    Bad("no built-in tool's calls", {"max_tool_calls": 0}, paths=(RESPONSES,)),
    Bad("a format without its name", {"text": {"format": {"type": "json_schema", "schema": {}}}},
        paths=(RESPONSES,)),
    Bad("a schema of plain text", {"text": {"format": {"type": "text", "schema": {}}}},
        paths=(RESPONSES,)),
    Bad("another format", {"text": {"format": {"type": "yaml"}}}, paths=(RESPONSES,)),
    # Fields that are refused, unknown, or of others.
    Bad("a slip", {"modle": "x"}, paths=tuple(GOOD), code="unknown_field"),
    Bad("an unknown model", {"model": "no/such"}, paths=tuple(GOOD), status=404,
        code="model_not_found"),
    Bad("a model as a number", {"model": 5}, paths=tuple(GOOD)),
    Bad("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]},
        paths=(RESPONSES, MESSAGES)),  # each route has its own shape of them
    Bad("tools that are none", {"tools": [3]}, paths=(CHAT, RESPONSES, MESSAGES)),
    Bad("a choice without tools", {"tool_choice": "required"}, paths=(CHAT, RESPONSES)),
    Bad("structured output", {"guided_json": {"type": "objects"}}),
    Bad("another form of it", {"structured_outputs": {"regex": "(a"}}),
    Bad("json objects", {"response_format": {"type": "yaml"}}, paths=(CHAT, COMPLETIONS)),
    *[Bad(f"a format with {what}", {"response_format": {"type": "json_schema", "json_schema":
        {"schema": {}} | form}}, paths=(CHAT, COMPLETIONS)) for what, form in {"no name": {},
        "a number as name": {"name": 1}, "a word for strict": {"name": "x", "strict": "yes"},
        "what is none": {"name": "x", "a": 1}}.items()],
    Bad("a format's unknown key", {"response_format": {"type": "text", "a": 1}}, paths=(CHAT,)),
    Bad("no constraint's false", {"structured_outputs": {"regex": "a", "nonsense": False}}),
    Bad("a tier that is no word", {"service_tier": 1}, paths=TEXT),
    Bad("metadata that is a word", {"metadata": "me"}, paths=(CHAT, COMPLETIONS, MESSAGES)),
    Bad("thinking of no kind", {"thinking": {}}, paths=(MESSAGES,)),
    Bad("a thread to go on", {"thread": {"type": "continue", "previous_message_id": "x"}},
        paths=(MESSAGES,), status=404),
    # Token ids.
    Bad("no tokens", {}, "tokens", (DETOKENIZE,), without=("tokens",)),
    Bad("tokens outside the vocabulary", {"tokens": [2048]}, paths=(DETOKENIZE,)),
    Bad("tokens below zero", {"tokens": [-1]}, paths=(DETOKENIZE,)),
    Bad("tokens as text", {"tokens": "5"}, paths=(DETOKENIZE,)),
    Bad("tokens of flags", {"tokens": [True]}, paths=(DETOKENIZE,)),
    Bad("a million tokens", {"tokens": [5] * 10**6}, paths=(DETOKENIZE,)),
    Bad("prompt and messages", {"messages": HELLO}, "prompt", (TOKENIZE,)),
    Bad("neither of them", {}, "prompt", (TOKENIZE,), without=("prompt",)),
]  # fmt: skip
CASES = [pytest.param(bad, path, id=f"{bad.kind}: {path}") for bad in BAD for path in bad.paths]


@dataclass(frozen=True)
class Raw:
    """Bytes that are no good body, whatever the path."""

    kind: str
    body: bytes
    status: int = 400
    headers: dict[str, str] = field(default_factory=dict)


RAW = [
    Raw("nothing", b""),
    Raw("blanks", b"  \n"),
    Raw("null", b"null"),
    Raw("a list", b"[]"),
    Raw("text", b'"Hello"'),
    Raw("a number", b"5"),
    Raw("words", b"Hello"),
    Raw("a cut object", b'{"model": "octavo/ti'),
    Raw("two objects", b"{}{}"),
    Raw("a comma too many", b'{"model": "octavo/tiny",}'),
    Raw("single quotes", b"{'model': 'octavo/tiny'}"),
    Raw("a comment", b"{} // no"),
    Raw("NaN", b'{"temperature": NaN}'),
    Raw("Infinity", b'{"temperature": -Infinity}'),
    Raw("a number beyond floats", b'{"temperature": 1e999}'),
    Raw("a number of 5,000 digits", b'{"n": ' + b"9" * 5000 + b"}"),
    Raw("a key twice", b'{"n": 1, "n": 2}'),
    Raw("a key twice within", b'{"metadata": {"a": 1, "a": 2}}'),
    Raw("65 levels", b'{"messages": ' + b"[" * 64 + b"]" * 64 + b"}"),
    Raw("a million levels", b'{"messages": ' + b"[" * 10**6),
    Raw("bytes that are no UTF-8", b'{"model": "\xff\xfe"}'),
    Raw("UTF-16", '{"model": "octavo/tiny"}'.encode("utf-16")),
    Raw("a byte order mark", b"\xef\xbb\xbf{}"),
    Raw("a raw line break in text", b'{"model": "a\nb"}'),
    Raw("a raw zero", b'{"model": "a\x00b"}'),
    Raw("plain text", b"{}", 415, {"content-type": "text/plain"}),
    Raw("a form", b"model=a", 415, {"content-type": "application/x-www-form-urlencoded"}),
    Raw("another charset", b"{}", 415, {"content-type": "application/json; charset=utf-16"}),
    Raw("compressed", b"{}", 415, {"content-encoding": "gzip"}),
]  # fmt: skip


def check_shape(reply: httpx.Response, status: int, path: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()
    error: dict[str, Any] = body["error"]
    assert error["message"]
    assert "Traceback" not in reply.text
    if path in (MESSAGES, COUNT):
        assert body["type"] == "error"
        assert set(error) - {"details"} == {"type", "message"}
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(("bad", "path"), CASES)
def test_bad_fields_are_refused_by_name(http: httpx.Client, bad: Bad, path: str) -> None:
    good = {name: value for name, value in GOOD[path].items() if name not in bad.without}
    body = json.dumps({**good, **bad.change}).encode()
    reply = http.post(path, content=body, headers={"content-type": "application/json"})
    error = check_shape(reply, bad.status, path)
    param = bad.param or next(iter(bad.change))
    if path not in (MESSAGES, COUNT):
        assert param in (ANY, error["param"]), error
        assert bad.code in (ANY, error["code"])
    assert len(error["message"]) < 500


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw.kind)
def test_bad_bodies_are_refused(http: httpx.Client, raw: Raw, path: str) -> None:
    headers = {"content-type": "application/json", **raw.headers}
    check_shape(http.post(path, content=raw.body, headers=headers), raw.status, path)


def test_a_length_beyond_the_limit_is_refused_unread(server) -> None:
    connection = HTTPConnection(server.url.removeprefix("http://"))
    headers = {"content-type": "application/json", "content-length": str(2**40)}
    connection.request("POST", CHAT, b"{", headers)
    reply = connection.getresponse()
    assert (reply.status, json.load(reply)["error"]["type"]) == (413, "invalid_request_error")
    connection.close()


@pytest.mark.parametrize("path", GOOD)
def test_other_methods_are_refused_with_those_that_are_taken(http: httpx.Client, path: str) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        reply = http.request(method, path)
        check_shape(reply, 405, path)
        assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/chat", "/v1/completions/", "/v1/../etc/passwd", "/v1/%00", "/v1/é"]
)
def test_paths_that_are_not_there_are_404(http: httpx.Client, path: str) -> None:
    check_shape(http.post(path, json={}), 404, path)


async def test_a_neighbours_greedy_answer_stays_the_same(server) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    good = {**question, "temperature": 0}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:

        async def answer() -> str:
            reply = await client.post(CHAT, json=good)
            text: str = reply.json()["choices"][0]["message"]["content"]
            return text

        async def disturb(bad: Bad) -> int:
            body = json.dumps({**GOOD[bad.paths[0]], **bad.change}).encode()
            kind = {"content-type": "application/json"}
            return (await client.post(bad.paths[0], content=body, headers=kind)).status_code

        alone = await answer()
        neighbours = [answer() for _ in range(20)]
        answers, statuses = await asyncio.gather(
            asyncio.gather(*neighbours), asyncio.gather(*map(disturb, BAD))
        )
    assert set(answers) == {alone}
    assert max(statuses) < 500


@pytest.mark.parametrize("path", GOOD)
def test_what_the_bad_bodies_are_made_of_is_good(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=GOOD[path])
    assert reply.status_code == 200, reply.text
