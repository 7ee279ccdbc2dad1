"""Whole tasks of coding agents, as their packages do them, with a model that follows a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coding_agents import AGENTS, DONE, DONE_MORE, MORE, TASK, Workplace, install, whole_script
from live_server import FLAGS, LiveServer, running_server
from scripted_model.folder import FLAGS as SCRIPTED
from scripted_model.folder import write_model

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("scripted")
    model = write_model(folder / "model", whole_script())
    base = (str(model), "--served-model-name", "coder", *FLAGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS), prepend=":")
        with running_server(folder / "log", *SCRIPTED, base=base) as server:
            yield server


LONG = ("opencode", "qwen_code")
"""They take minutes to install or seconds to start."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in AGENTS]
)
def test_an_agent_does_a_task_and_goes_on_with_it(
    live: LiveServer, name: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    agent = AGENTS[name]
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    cache = getattr(pytestconfig, "cache", None)  # none with -p no:cacheprovider
    kept = cache.mkdir(f"agents-{name}") if cache else tmp_path / "installed"
    kept.mkdir(exist_ok=True)
    installed = install(name, kept)
    place = Workplace(agent, installed, home, folder, live.url)
    before = len(live.log.read_text())
    assert DONE in place.ask(TASK.format(name))
    assert (folder / "note.txt").read_text() == "leaves\n"
    assert DONE_MORE in place.ask(*agent.more, MORE)
    assert (folder / "note.txt").read_text() == "sheets\n"
    assert [each.name for each in folder.iterdir()] == ["note.txt"]
    log = live.log.read_text()[before:]
    answers = [line.split() for line in log.splitlines() if " POST " in line]
    assert len(answers) >= 6
    assert {words[words.index("POST") + 2] for words in answers} == {"200"}
