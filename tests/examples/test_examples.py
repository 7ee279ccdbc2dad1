"""The examples and the commands of README.md run as they stand there."""

from __future__ import annotations

import runpy
import shlex
import shutil
import sys
from io import StringIO
from pathlib import Path

import pytest

from markdown import ROOT, code_blocks
from octavo.cli import main

README = ROOT / "README.md"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
COMMANDS = [
    shlex.split(line, comments=True)
    for block in code_blocks(README, "sh")
    for line in block.splitlines()
]
PRINTED = {  # by octavo/tiny, whose answers these are
    "adapters.py": next(block for block in code_blocks(README, "") if "pirate: " in block),
    "chat.py": "The capital of Italy is Rome.",
    "choices.py": "2 ' Paris",
    "demo.py": "==",
    "generate.py": next(block for block in code_blocks(README, "") if " -> " in block),
    "media.py": "A red circle.\nThree high beeps.\n",
    "meter.py": "{'ada': ",
    "stream.py": "How are you? ",
    "structured.py": "Rome by llguidance\nRome by llguidance\n{",
}
OF_A_SERVER = {"client.py"}
"""Those that need one; tests/server/test_readme.py starts it."""
ON_ANY_MACHINE = {"doctor": (0, 1)}
"""Exit codes other than 0 that say something of the machine, not of the command."""


def test_the_readme_shows_every_example_as_it_is() -> None:
    shown = code_blocks(README, "python")
    assert sorted(shown) == sorted(p.read_text() for p in SCRIPTS if p.name != "demo.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [p for p in SCRIPTS if p.name not in OF_A_SERVER], ids=lambda path: path.name
)
def test_an_example_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert PRINTED[script.name] in capsys.readouterr().out


def test_the_commands_are_found() -> None:
    assert {command[1] for command in COMMANDS} >= {"chat", "generate", "run-batch", "plan"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_readme_succeeds(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "batch.jsonl", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", StringIO("Hello!\n"))
    program, name, *_ = command
    assert program == "octavo"
    assert main(command[1:]) in ON_ANY_MACHINE.get(name, (0,))
    if name == "run-batch":
        (results,) = tmp_path.rglob("*.results.jsonl")
        assert results.read_text().count('"status_code": 200') == 2
    else:
        assert capsys.readouterr().out
