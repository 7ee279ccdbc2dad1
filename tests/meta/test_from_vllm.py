"""docs/from-vllm.md names what is there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from markdown import ROOT, code_blocks, rows
from octavo import SamplingParams
from octavo.cli.batch.command import RunBatchCommand
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.plan import PlanCommand
from octavo.cli.serve import ServeCommand
from octavo.cli.speaking import add_speaker_flags
from octavo.environment import VARIABLES
from octavo.errors import ConfigError
from octavo.options import read_options
from octavo.vllm_names import HERE

PAGE = ROOT / "docs" / "from-vllm.md"
FLAGS, FIELDS = code_blocks(PAGE, "")
(SCRIPT,) = code_blocks(PAGE, "python")


def options(*commands: object) -> set[str]:
    parser = Parser(prog="octavo", conflict_handler="resolve")
    for command in commands:
        command.configure(parser)
    add_speaker_flags(parser)
    add_common_options(parser)
    return set(parser.option_names())


def test_flags_that_are_said_to_be_the_same_are_flags() -> None:
    assert set(FLAGS.split()) <= options(ServeCommand())


@pytest.mark.parametrize("heading", ["Commands", "Flags"])
def test_flags_of_the_other_column_are_flags(heading: str) -> None:
    ours = " ".join(row[1] for row in rows(PAGE, heading))
    assert set(re.findall(r"--[a-z-]+", ours)) <= options(
        ServeCommand(), PlanCommand(), RunBatchCommand()
    )


def test_what_errors_say_of_vllms_names_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [n for n in HERE if f"--{n.replace('_', '-')}" not in page and f"`{n}" not in page]
    assert [name for name in missing if f"({name}=" not in page] == []
    flags = options(ServeCommand())
    assert [name for name in HERE if f"--{name.replace('_', '-')}" in flags] == []
    named = {word for text in HERE.values() for word in re.findall(r"\b[a-z]+_[a-z_]+\b", text)}
    ours = {flag[2:].replace("-", "_") for flag in flags}
    assert named - ours == {"guided_decoding_backend", "chat_template_kwargs"}  # of requests


def test_errors_say_what_is_here_in_the_place_of_vllms_names() -> None:
    parser = Parser(prog="octavo serve")
    ServeCommand().configure(parser)
    with pytest.raises(
        ConfigError, match=r"--swap-space'; here: --swap-gib, with --preemption-mode"
    ):
        parser.parse_args(["m", "--swap-space", "4"])
    with pytest.raises(TypeError, match="'swap_space', vLLM's; here: swap_gib"):
        read_options({"model": "m", "swap_space": 4}, caller="LLM")
    with pytest.raises(TypeError, match="'structured_outputs'; here: guided"):
        SamplingParams(structured_outputs=None)


def test_variables_are_read() -> None:
    named = set(re.findall(r"OCTAVO_\w+", PAGE.read_text()))
    assert len(named) > 5
    assert named <= {variable.name for variable in VARIABLES}


def test_parameters_that_are_said_to_be_the_same_are_fields() -> None:
    assert set(FIELDS.split()) <= {field.name for field in fields(SamplingParams)}


def test_its_script_runs(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPT, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == " Paris stop\n"
