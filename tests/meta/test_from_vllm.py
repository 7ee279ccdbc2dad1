"""docs/from-vllm.md names what is there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from benchmarks.vllm_names import read_names, tables, with_tables

from markdown import ROOT, code_blocks, rows
from octavo import SamplingParams
from octavo.cli.batch.command import RunBatchCommand
from octavo.cli.parser import Parser, add_common_options
from octavo.cli.plan import PlanCommand
from octavo.cli.serve import ServeCommand
from octavo.cli.speaking import add_speaker_flags
from octavo.environment import VARIABLES
from octavo.errors import ConfigError
from octavo.frontend.options import read_options
from octavo.vllm_names import PARAMETERS, SHORT, verdicts
from octavo.vllm_names import VARIABLES as VARIABLES_OF_VLLM
from octavo_registry.naming import meant

PAGE = ROOT / "docs" / "from-vllm.md"
(FIELDS,) = code_blocks(PAGE, "")
(SCRIPT,) = code_blocks(PAGE, "python")


def options(*commands: object) -> set[str]:
    parser = Parser(prog="octavo", conflict_handler="resolve")
    for command in commands:
        command.configure(parser)
    add_speaker_flags(parser)
    add_common_options(parser)
    return set(parser.option_names())


@pytest.mark.parametrize("heading", ["Commands", "Flags"])
def test_flags_of_the_other_column_are_flags(heading: str) -> None:
    ours = " ".join(row[1] for row in rows(PAGE, heading))
    shutdown = {"--drain-timeout-seconds", "--lora-pool-rank"}
    assert shutdown <= {*re.findall(r"--[a-z-]+", ours)} or heading == "Commands"
    assert set(re.findall(r"--[a-z-]+", ours)) <= options(
        ServeCommand(), PlanCommand(), RunBatchCommand()
    )


def test_each_flag_and_route_of_vllms_has_a_verdict() -> None:
    """The page is what ``python -m benchmarks.vllm_names`` writes: run it after a change."""
    names = read_names()
    assert (names.version, len(names.flags), len(names.routes)) == ("0.26.0", 274, 63)
    page = PAGE.read_text()
    assert page == with_tables(page, names)
    written = tables(names)
    cells = {cell for line in written.splitlines() for cell in line.split("|")[1:2]}
    flags, routes = ({name for cell in cells for name in re.findall(form, cell)}
                     for form in (r"`(--[\w-]+)`", r"`([A-Z]+ /[^`]*)`"))  # fmt: skip
    assert flags == {flag.names[0] for flag in names.flags}
    assert routes == {*names.routes}


def test_a_flag_has_one_verdict_and_takes_what_vllms_takes() -> None:
    takes = {flag.names[0]: flag.takes for flag in read_names().flags}
    found = list(verdicts())
    assert len({verdict.name for verdict in found}) == len(found)
    ours = options(ServeCommand())
    old = {"disable_log_requests", "guided_decoding_backend", "swap_space"}  # of earlier versions
    for verdict in found:
        flag = "--" + verdict.name.replace("_", "-")
        assert flag not in ours
        if verdict.name not in old:
            assert verdict.takes == takes[flag], flag
    short = {name for flag in read_names().flags for name in flag.names[1:]}
    assert short - {*SHORT} == set()
    names = {flag.names[0] for flag in read_names().flags if len(flag.names) > 1}
    assert names <= {"--" + name.replace("_", "-") for name in SHORT.values()}


def test_texts_name_options_that_there_are() -> None:
    texts = [verdict.text for verdict in verdicts()] + [
        *PARAMETERS.values(),
        *VARIABLES_OF_VLLM.values(),
    ]
    named = {name for text in texts for name in re.findall(r"`(\w+)`", text)}
    ours = {flag[2:].replace("-", "_") for flag in options(ServeCommand())}
    assert named - ours == {"guided"}  # of SamplingParams
    assert {*VARIABLES_OF_VLLM} <= {*read_names().variables, "VLLM_ATTENTION_BACKEND"}


def test_no_name_of_vllms_is_taken_for_a_misspelling_of_another_meaning() -> None:
    ours = options(ServeCommand())
    flags = [flag.names[0] for flag in read_names().flags if flag.names[0] not in ours]
    near = {(flag, each) for flag in flags for each in meant(flag, ours)}
    assert near == {("--h11-max-header-count", "--max-header-count")}  # what it does


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--max-modellen", "--max-model-len"),
        ("--max-model-length", "--max-model-len"),
        ("--gpu-mem-utilization", "--gpu-memory-utilization"),
        ("--max-batched-tokens", "--max-num-batched-tokens"),
        ("--prot", "--port"),
        ("--tensor-paralel-size", "--tensor-parallel-size"),
        ("--enable-prefix-cache", "--enable-prefix-caching"),
        ("--servd-model-nam", "--served-model-name"),
        ("--enable-dora", "--enable-lora"),
    ],
)
def test_a_misspelt_option_is_known(given: str, wanted: str) -> None:
    assert meant(given, options(ServeCommand()))[0] == wanted


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
