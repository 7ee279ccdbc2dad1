"""docs/model_plugin.md: its commands write its code, which passes, fails and runs as it says."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from markdown import ROOT, code_blocks, rows
from octavo.cli import main
from octavo.testing.kit import run
from octavo.testing.model import make_trial
from octavo.testing.modes import Trial, in_a_batch, teacher_forced
from octavo.testing.variants import Variant
from octavo_registry import PluginHost

PAGE = ROOT / "docs" / "model_plugin.md"
ENTRY_POINT, MODEL, USE = code_blocks(PAGE, "python")
NEW, INSTALL, TEST = (shlex.split(line) for line in code_blocks(PAGE, "")[0].splitlines())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the page's first command has written, as if its second one had installed it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "octavo_duet", raising=False)
    assert main(NEW[1:]) == 0
    folder = tmp_path / INSTALL[-1]
    ((name, value),) = tomllib.loads((folder / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]["octavo"].items()
    info = folder / "octavo_duet-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: octavo-duet\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[octavo]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for module in [each for each in sys.modules if each.partition(".")[0] == "octavo_duet"]:
        del sys.modules[module]


def trial(folder: Path) -> Trial:
    return make_trial(PluginHost.discover(), "DuetForCausalLM", Variant(), folder)


def test_the_page_shows_what_the_command_writes(folder: Path) -> None:
    package = folder / "octavo_duet"
    assert (package / "__init__.py").read_text() == ENTRY_POINT
    assert (package / "model.py").read_text() == MODEL
    for name, lines, _ in rows(PAGE, "1. Make the package"):
        path = folder.parent / name.strip("`")
        assert path.exists()
        assert lines in ("", str(len(path.read_text().splitlines())))


def test_signatures_are_those_of_the_layers() -> None:
    (block,) = code_blocks(PAGE, "python signatures")
    shown = re.findall(r"(\w+)\.(\w+)(\(.*?\))(?:$|  #)", block.replace("\n  ", " "), re.MULTILINE)
    assert len(shown) == len(re.findall(r"^\w", block, re.MULTILINE)) > 15
    for module, name, given in shown:
        signature = inspect.signature(getattr(import_module(f"octavo.layers.{module}"), name))
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        bare = signature.replace(parameters=plain, return_annotation=signature.empty)
        assert " ".join(given.split()) == str(bare), name


def test_fields_of_a_variant_are_those_that_there_are() -> None:
    table = PAGE.read_text().partition("field of `Variant`")[2].partition("More about it")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == {field.name for field in fields(Variant)}


def test_it_is_60_lines() -> None:
    assert len((ENTRY_POINT + MODEL).splitlines()) <= 60


def test_it_equals_its_reference(folder: Path, tmp_path: Path) -> None:
    duet = trial(tmp_path)
    for comparison in (teacher_forced(duet), in_a_batch(duet, max_num_batched_tokens=7)):
        assert comparison.passed, comparison.as_text()


def test_the_mistake_of_the_page_fails_as_it_says(folder: Path) -> None:
    model = folder / "octavo_duet" / "model.py"
    lines = MODEL.splitlines(keepends=True)
    (moved,) = (i for i, line in enumerate(lines) if "to_mlp_TD = " in line)
    assert "self_attn.add_to" in lines[moved + 1]
    lines[moved], lines[moved + 1] = lines[moved + 1], lines[moved]
    model.write_text("".join(lines))
    report = run(PluginHost.discover(), TEST[-1]).as_text()
    (shown,) = (block for block in code_blocks(PAGE, "") if block.startswith("FAIL"))
    assert shown in report


@pytest.mark.slow
def test_it_passes_the_kit_with_the_lines_that_the_page_shows(folder: Path) -> None:
    report = run(PluginHost.discover(), TEST[-1])
    assert report.passed, report.as_text()
    (shown,) = (block for block in code_blocks(PAGE, "") if block.startswith("ok"))
    for line in shown.splitlines():
        assert line.rpartition(": ")[0] in report.as_text()


@pytest.mark.slow
def test_it_generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(USE, str(PAGE), "exec"), {})
    assert len(capsys.readouterr().out) > 3
