"""Usage statistics: a file that its user can read and forbid, and that goes nowhere by itself."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from octavo.observability.usage_stats import FILE, folder, record_start

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
FACTS = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has forbidden nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("DO_NOT_TRACK", "OCTAVO_NO_USAGE_STATS", "OCTAVO_USAGE_STATS_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "octavo"


def recorded() -> dict:
    thread = record_start(**FACTS)
    assert thread is not None
    thread.join(10)
    return json.loads((folder() / FILE).read_text())


def test_the_file_counts_starts_and_says_what_the_last_one_was(home: Path) -> None:
    recorded()
    known = recorded()
    assert known["starts"] == 2
    assert known["first_day"] <= known["last_day"]
    assert known["last_start"] | FACTS == known["last_start"]
    assert set(known["last_start"]) == {*FACTS, "octavo", "torch", "python", "system", "device"}
    assert "OCTAVO_NO_USAGE_STATS" in known["about"]
    assert stat.S_IMODE((home / FILE).stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == [FILE]


def test_the_default_place_is_in_the_users_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert folder() / FILE == Path("/home/someone/.config/octavo/usage_stats.json")


@pytest.mark.parametrize("name", ["OCTAVO_NO_USAGE_STATS", "DO_NOT_TRACK"])
def test_a_variable_turns_it_off(name, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert record_start(**FACTS) is None
    assert not home.exists()


def test_a_file_beside_it_turns_it_off(home: Path) -> None:
    home.mkdir()
    (home / "do_not_track").touch()
    assert record_start(**FACTS) is None
    assert [path.name for path in home.iterdir()] == ["do_not_track"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"starts": "many"}', '{"starts": null}'])
def test_a_broken_file_is_begun_anew(text, home: Path) -> None:
    home.mkdir()
    (home / FILE).write_text(text)
    assert recorded()["starts"] == 1


def test_a_folder_that_cannot_be_written_is_nobodys_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    thread = record_start(**FACTS)
    if thread is not None:
        thread.join(10)


def test_the_caller_waits_less_than_five_milliseconds() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        thread = record_start(**FACTS)
        times.append(time.perf_counter() - began)
        assert thread is not None
        thread.join(10)
    assert min(times) < 0.005


def test_two_at_once_leave_a_whole_file(home: Path) -> None:
    threads = [record_start(**FACTS) for _ in range(8)]
    for thread in threads:
        assert thread is not None
        thread.join(10)
    assert 1 <= json.loads((home / FILE).read_text())["starts"] <= 8
    assert [path.name for path in home.iterdir()] == [FILE]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[dict]]]:
    bodies: list[dict] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", bodies
        server.shutdown()


def test_it_is_sent_where_the_operator_says_and_nowhere_else(
    collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, bodies = collector
    recorded()
    assert bodies == []
    monkeypatch.setenv("OCTAVO_USAGE_STATS_URL", url)
    assert recorded()["starts"] == 2
    (body,) = bodies
    assert body | FACTS == body


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:9/", "nonsense"])
def test_an_address_that_does_not_answer_is_nobodys_trouble(
    url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_USAGE_STATS_URL", url)
    assert recorded()["starts"] == 1
