"""What plugins of one's own get over HTTP: docs/hooks.md's routes, and what requests carry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from live_server import LiveServer, running_server
from markdown import ROOT, code_blocks
from server_faults import until

OWN = """
import time
from pathlib import Path

from octavo_registry import Delta, Endpoint, OctavoError, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_routes(routes):
    routes.add("count", "own_plugin:Count")
    routes.add("blocking", "own_plugin:Blocking")


@hookimpl
def register_tool_parsers(parsers):
    parsers.add("sleepy", "own_plugin:SleepyParser")


@hookimpl
def register_logits_processors(processors):
    processors.add("forcing", "own_plugin:Forcing")


class Blocking:
    def __init__(self, server):
        self._server = server

    def endpoints(self):
        return [
            Endpoint(method="GET", path="/sleep/{how}", app=self._sleep),
            Endpoint(method="GET", path="/ask", app=self._ask),
            Endpoint(method="GET", path="/fail", app=self._fail),
        ]

    async def _sleep(self, scope, receive, send):
        block()
        await answer(send, "slept")

    async def _ask(self, scope, receive, send):
        async for output in self._server.engine.generate("Hello"):
            text = output.outputs[0].text
        await answer(send, text)

    async def _fail(self, scope, receive, send):
        raise KeyError("broken")


def block():
    began = time.monotonic()
    while time.monotonic() - began < 1.2 or not Path(__file__).with_name("released").exists():
        time.sleep(0.01)


async def answer(send, text):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": text.encode()})


class SleepyParser:
    def __init__(self, tokenizer):
        self.markers = ()

    def form(self, tools, *, parallel):
        return None

    def stream(self, tools=None):
        return self

    def feed(self, text):
        block()
        return [Delta(content=text)]

    def finish(self):
        return []


class Forcing:
    def __init__(self, vocab_size, device):
        self.tokens = {}

    @staticmethod
    def validate(extra_args):
        if extra_args.get("token") == "refused":
            raise OctavoError("token must be a number")

    def attach(self, slot, extra_args, prompt_token_ids, output_token_ids):
        self.tokens[slot] = extra_args.get("token")
        if self.tokens[slot] == "late":
            raise OctavoError("token must not be late")
        if self.tokens[slot] == "broken":
            raise KeyError("broken")

    def detach(self, slot):
        del self.tokens[slot]

    def apply(self, logits_RV, slots_R):
        for row, slot in enumerate(slots_R.tolist()):
            if self.tokens[slot] is not None:
                logits_RV[row, self.tokens[slot]] = 1e4
        return logits_RV
"""
CHAT = {"messages": [{"role": "user", "content": "Hello!"}]}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("own")
    (routes,) = (c for c in code_blocks(ROOT / "docs" / "hooks.md", "python") if "Endpoint" in c)
    (folder / "own_plugin.py").write_text(f"{routes}\n{OWN}")
    flags = ("--plugin", "own_plugin", "--logits-processors", "forcing")
    flags += ("--tool-call-parser", "sleepy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        with running_server(folder / "log", *flags) as server:
            yield server


def test_the_page_s_routes_answer(live: LiveServer) -> None:
    counted = live.post("/tokenize", {"prompt": "The capital of Peru"}).json()["count"]
    assert live.get("/count/The capital of Peru").text == str(counted)


@pytest.mark.parametrize(
    ("path", "body", "length"),
    [
        ("/v1/completions", {"prompt": "Hello!"}, "max_tokens"),
        ("/v1/chat/completions", CHAT, "max_tokens"),
        ("/v1/responses", {"input": "Hello!"}, "max_output_tokens"),
    ],
)
def test_a_processor_reads_what_the_request_carries(live: LiveServer, path, body, length) -> None:
    forced = live.post("/detokenize", {"tokens": [300] * 16}).json()["prompt"]
    body = {**body, "temperature": 0, length: 16}
    plain = live.post(path, body)
    answer = live.post(path, {**body, "vllm_xargs": {"token": 300}})
    assert answer.status_code == plain.status_code == 200, answer.text
    assert _text(answer.json()) == forced != _text(plain.json())


@pytest.mark.parametrize("token", ["refused", "late"])
def test_what_a_processor_refuses_is_a_400(live: LiveServer, token) -> None:
    answer = live.post("/v1/completions", {"prompt": "a", "vllm_xargs": {"token": token}})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("token must")


def test_a_processor_that_fails_is_a_500_with_its_plugin_s_name(live: LiveServer) -> None:
    answer = live.post("/v1/completions", {"prompt": "a", "vllm_xargs": {"token": "broken"}})
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message == "plugin 'own_plugin' has failed inside the server, whose log has the cause"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("count", "method", "path", "body", "told"),
    [
        (
            1,
            "GET",
            "/sleep/soundly",
            None,
            "the event loop of plugin 'own_plugin' is held by plugin 'own_plugin' in "
            "GET /sleep/{how} (",
        ),
        (
            8,  # more threads than an event loop has for other work
            "POST",
            "/v1/chat/completions",
            {**CHAT, "tools": TOOLS, "max_tokens": 1},
            "the tool parser 'sleepy' of plugin 'own_plugin' took ",
        ),
        (8, "POST", "/parse_tool_calls", {"text": "a", "parser": "sleepy"}, None),
    ],
)
def test_what_blocks_in_a_plugin_holds_up_nobody_else(
    live, count, method, path, body, told
) -> None:
    released = live.log.with_name("released")
    with ThreadPoolExecutor(count) as threads, live.client() as http:
        blocked = [threads.submit(http.request, method, path, json=body) for _ in range(count)]
        try:
            for _ in range(3):
                assert live.get("/health").status_code == 200
                plain = live.post("/v1/chat/completions", {**CHAT, "max_tokens": 1})
                assert plain.status_code == 200
            assert not any(each.done() for each in blocked)
            if "is held" in (told or ""):  # it is told while it lasts
                until(lambda: told in live.log.read_text())
        finally:
            released.touch()
        assert {each.result().status_code for each in blocked} == {200}
    released.unlink()
    if told is not None:
        until(lambda: told in live.log.read_text())


def test_a_route_on_a_loop_of_its_own_asks_the_engine_and_fails_as_others_do(live) -> None:
    assert live.get("/ask").status_code == 200
    with ThreadPoolExecutor(8) as threads:
        bodies = [{"prompt": "Hello", "max_tokens": 4}] * 8
        theirs = [threads.submit(live.get, "/ask") for _ in range(8)]
        ours = [threads.submit(live.post, "/v1/completions", body) for body in bodies]
        assert {each.result().status_code for each in (*theirs, *ours)} == {200}
    answer = live.get("/fail")
    assert answer.status_code == 500
    assert "own_plugin" in answer.json()["error"]["message"]


def test_what_is_no_object_is_refused(live: LiveServer) -> None:
    answer = live.post("/v1/completions", {"prompt": "a", "vllm_xargs": [1]})
    assert answer.status_code == 400
    assert "vllm_xargs" in answer.json()["error"]["message"]


def _text(answer: dict) -> str:
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    (choice,) = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]
