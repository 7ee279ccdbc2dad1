"""Commands that talk to a server: ``octavo chat``, ``complete`` and ``bench serve``."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.cli import main

GREEDY = ["--temperature", "0", "--max-tokens", "12"]
QUESTION = "What is the capital of France?"


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def answer(http, *messages: str) -> str:
    roles = ["user", "assistant"] * len(messages)
    body = {
        "messages": [{"role": r, "content": m} for r, m in zip(roles, messages, strict=False)],
        "temperature": 0,
        "max_tokens": 12,
    }
    return http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]


def test_a_chat_with_a_server_remembers_what_was_said(server, http, capsys, monkeypatch) -> None:
    typed(monkeypatch, QUESTION, "And of Japan?")
    assert main(["chat", "--url", server.url, *GREEDY]) == 0
    first = answer(http, QUESTION)
    second = answer(http, QUESTION, first, "And of Japan?")
    assert capsys.readouterr().out == f"{first}\n{second}\n"


def test_commands_of_a_chat_work_with_a_server_too(server, http, capsys, monkeypatch) -> None:
    typed(monkeypatch, "Hello", "/reset", QUESTION, "/nonsense", "/exit", "not read")
    assert main(["chat", "--url", f"{server.url}/v1", "octavo/tiny", *GREEDY]) == 0
    said = capsys.readouterr().out
    assert answer(http, QUESTION) in said
    assert "there is no command '/nonsense'" in said


def test_completions_of_a_server_are_those_of_its_api(server, http, capsys, monkeypatch) -> None:
    typed(monkeypatch, "The capital of France is")
    assert main(["complete", "--url", server.url, *GREEDY, "--stop", "."]) == 0
    body = {
        "prompt": "The capital of France is",
        "temperature": 0,
        "max_tokens": 12,
        "stop": ["."],
    }
    expected = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert capsys.readouterr().out == expected + "\n"


def test_no_engine_is_loaded_to_talk_to_a_server(server) -> None:
    code = (
        "import sys; from octavo.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or ('torch' in sys.modules) or ('httpx' in sys.modules))"
    )
    command = [sys.executable, "-c", code, "complete", "--url", server.url, *GREEDY]
    done = subprocess.run(command, input="Hello", text=True, capture_output=True, check=False)
    assert (done.returncode, bool(done.stdout)) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing/here"], "it has: octavo/tiny"),
        (["--dtype", "float32"], "--dtype is for an engine of this process"),
        (["--max-model-len", "64"], "--max-model-len is for an engine"),
        (["--temperature", "-1"], "temperature"),
    ],
)
def test_what_a_server_cannot_be_asked_is_refused(server, capsys, arguments, said) -> None:
    assert main(["complete", "--url", server.url, *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a MODEL, or the --url"),
        (["octavo/tiny", "--api-key", "k"], "give its --url"),
        (["--url", "localhost:8000"], "http://host:8000"),
        (["--url", "http://user:word@localhost"], "--api-key"),
        (["--url", "http://localhost:99999"], "Port out of range"),
    ],
)
def test_an_address_that_is_none_is_refused(capsys, arguments, said) -> None:
    assert main(["chat", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_conversation_that_is_full_names_the_command_that_helps(
    server, capsys, monkeypatch
) -> None:
    typed(monkeypatch, "Hello", "and " * 1200)
    assert main(["chat", "--url", server.url, *GREEDY]) == 2
    assert "/reset forgets it" in capsys.readouterr().err


class Replies(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stream = b""
    status = 200
    seen: list[tuple[str, str | None, dict]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self._send(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        Replies.seen.append((self.path, self.headers["authorization"], json.loads(body)))
        self._send(Replies.status, Replies.stream)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None: ...


@contextmanager
def replying(stream: bytes, status: int = 200) -> Iterator[str]:
    """Any server's stream, in place of ours."""
    Replies.stream, Replies.status = stream, status
    Replies.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Replies) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/some/path"
        made.shutdown()


PIECE = b'data: {"choices": [{"text": "yes"}]}\n\n'


def test_a_key_and_a_path_are_part_of_every_request(capsys, monkeypatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    typed(monkeypatch, "really?")
    with replying(PIECE + b": a comment\r\n\r\ndata: [DONE]\n\n") as url:
        assert main(["complete", "--url", url, "--seed", "7"]) == 0
    assert capsys.readouterr().out == "yes\n"
    ((path, key, body),) = Replies.seen
    assert (path, key) == ("/some/path/v1/completions", "Bearer secret")
    assert body == {
        "model": "m",
        "prompt": "really?",
        "max_tokens": 256,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("stream", "status", "said"),
    [
        (PIECE, 200, "broke off"),
        (PIECE + b'data: {"error": {"message": "the engine died"}}\n\n', 200, "the engine died"),
        (b"data: nonsense\n\n", 200, "not JSON"),
        (b'data: {"x": 1}\n\ndata: [DONE]\n\n', 200, "unknown form"),
        (b'{"error": {"message": "is full"}}', 503, "is full"),
        (b"<html>", 502, "answers 502"),
        (b'{"error": {"message": "no key"}}', 401, "no key; give the server's key with --api-key"),
        (b"", 401, "or OCTAVO_API_KEY"),
    ],
)
def test_an_answer_that_fails_is_one_line(stream, status, said, capsys, monkeypatch) -> None:
    typed(monkeypatch, "really?")
    with replying(stream, status) as url:
        assert main(["complete", "--url", url]) == 1
    err = capsys.readouterr().err
    assert (said in err, err.count("\n")) == (True, 1)


def test_an_interrupt_stops_an_answer_and_the_server_stops_with_it(server, http) -> None:
    parent, child = pty.openpty()
    code = "import sys; from octavo.cli import main; sys.exit(main())"
    flags = ["--max-tokens", "900", "--ignore-eos", "--temperature", "0"]
    command = [sys.executable, "-c", code, "complete", "--url", server.url, *flags]
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, start_new_session=True
    ) as process:
        os.close(child)
        shown = Screen(parent)
        try:
            shown.until("> ")
            os.write(parent, b"Once upon a time\n")
            shown.until("Once upon a time\r\n")
            shown.more()
            process.send_signal(signal.SIGINT)
            shown.until(" ...")
            shown.until("> ")
            assert_soon(lambda: http.get("/load").json()["server_load"] == 0)
            os.write(parent, b"\x04")
            assert process.wait(60) == 0
        finally:
            process.kill()  # else a failure would wait for it
    os.close(parent)


class Screen:
    def __init__(self, end: int) -> None:
        self._end = end
        self.text = ""

    def more(self) -> None:
        assert select.select([self._end], [], [], 60)[0], self.text
        self.text += os.read(self._end, 4096).decode(errors="replace")

    def until(self, text: str) -> None:
        while text not in self.text:
            self.more()
        self.text = self.text.partition(text)[2]


def assert_soon(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_bench_counts_every_token_of_a_server(server, tmp_path: Path, capsys, endpoint) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    load = ["--num-prompts", "6", "--input-len", "24", "--output-len", "8", "--max-concurrency"]
    more = ["4", "--request-rate", "50", "--goodput", "ttft:60000", "itl:60000"]
    files = ["--output-json", str(out), "--plot", str(plot), "--num-warmups", "1"]
    command = ["bench", "serve", "--url", server.url, "--endpoint", endpoint]
    assert main([*command, *load, *more, *files]) == 0
    summary = json.loads(out.read_text())["summary"]
    assert (summary["completed"], summary["output_tokens"]) == (6, 48)
    assert summary["goodput_share"] == 1.0
    assert endpoint == "chat" or summary["input_tokens"] == 6 * 24
    assert "time to first token" in capsys.readouterr().out
    ElementTree.parse(plot)


def test_bench_sends_a_files_prompts(server, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    line = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
    prompts.write_text(json.dumps(line))
    command = ["bench", "serve", "--url", server.url, "--endpoint", "chat", "--num-prompts", "2"]
    assert main([*command, "--prompts", str(prompts), "--output-json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [request["output_tokens"] for request in found["requests"]] == [4, 4]


def test_a_load_that_a_server_refuses_ends_at_the_warm_up(server, capsys) -> None:
    command = ["bench", "serve", "--url", server.url, "--input-len", "5000"]
    assert main([*command, "--num-prompts", "2"]) == 1
    assert "warm-up failed: 400" in capsys.readouterr().err
