"""The server's section of README.md, as it stands there, against a real server."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from live_server import LiveServer, running_server
from markdown import ROOT, code_blocks

ADDRESS = "localhost:8000"
BLOCKS = code_blocks(ROOT / "README.md", "bash")
(SERVE,) = [block.strip() for block in BLOCKS if block.startswith("octavo")]
CURLS = [block for block in BLOCKS if block.startswith("curl")]
SAYS = {
    "v1/models": '"octavo/tiny"',
    "v1/chat/completions": "The capital of Italy is Rome.",
    "v1/chat/completions, streaming": "I am well, thank you!",
    "v1/completions": " Lima",
    "metrics": "octavo:generation_tokens_total",
}


def name(curl: str) -> str:
    """Of the route, and whether it streams."""
    path = next(word for word in shlex.split(curl) if word.startswith(ADDRESS))
    return path.partition("/")[2] + (", streaming" if '"stream": true' in curl else "")


def text_of(reply: str) -> str:
    """What a person sees: of a stream, its pieces joined."""
    events = [line.removeprefix("data: ") for line in reply.splitlines() if line.startswith("data")]
    if not events:
        return reply
    assert events.pop() == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events)


def test_the_page_shows_models_chats_a_stream_and_completions() -> None:
    assert {name(curl) for curl in CURLS} >= SAYS.keys() - {"metrics"}


@pytest.mark.parametrize("curl", CURLS, ids=name)
def test_a_curl_of_the_readme_gets_its_answer(curl: str, server: LiveServer) -> None:
    command = curl.replace(ADDRESS, server.url.removeprefix("http://")).replace(
        "curl ", "curl --fail --silent --show-error --max-time 60 ", 1
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SAYS[name(curl)] in text_of(done.stdout)


def test_the_client_of_the_readme_streams_an_answer(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (ROOT / "examples" / "client.py").read_text()
    assert script in code_blocks(ROOT / "README.md", "python")
    (tmp_path / "client.py").write_text(script.replace(f"http://{ADDRESS}", server.url))
    runpy.run_path(str(tmp_path / "client.py"), run_name="__main__")
    assert capsys.readouterr().out == "The capital of Italy is Rome.\n"


@pytest.mark.slow
def test_the_server_of_the_readme_ends_cleanly_on_ctrl_c(tmp_path: Path) -> None:
    assert SERVE == "octavo serve octavo/tiny"  # which running_server starts, on a free port
    with running_server(tmp_path / "log") as live:
        os.killpg(live.process.pid, signal.SIGINT)  # as a terminal does: the engine gets it too
        assert live.process.wait(60) == 0
        assert "Traceback" not in live.log.read_text()
        assert live.log.read_text().endswith("shutting down\n")
