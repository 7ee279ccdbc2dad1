"""The examples in examples/plugins are packages that install, show up, run and prove themselves.

They are installed into a folder of its own, which only the processes of these tests see.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
TANDEM, TABLES = EXAMPLES / "octavo-tandem", EXAMPLES / "octavo-tables"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages are installed."""
    folder = tmp_path_factory.mktemp("site")
    copies = tmp_path_factory.mktemp("source")
    sources = [str(shutil.copytree(each, copies / each.name)) for each in (TANDEM, TABLES)]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    done = run([*pip, "--no-index", "--target", str(folder), *sources], site=folder)
    assert done.returncode == 0, done.stderr
    return folder


def run(command: list[str], *, site: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def octavo(*arguments: str, site: Path) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-P", "-m", "octavo", *arguments], site=site)


def test_it_is_listed_with_its_distribution_and_version(site: Path) -> None:
    done = octavo("plugin", "list", "--json", site=site)
    assert {plugin["name"]: plugin for plugin in json.loads(done.stdout)}["tandem"] == {
        "name": "tandem",
        "version": "0.3.0",
        "distribution": "octavo-tandem",
        "module": "octavo_tandem",
        "registers": {"model": ["TandemForCausalLM"]},
    }


@pytest.mark.slow
def test_it_generates_the_same_in_this_process_and_in_one_of_its_own(
    site: Path, tmp_path: Path
) -> None:
    script = [sys.executable, str(TANDEM / "generate.py"), str(tmp_path / "checkpoint")]
    here = run(script, site=site)
    there = run([*script, "--engine-process"], site=site)
    assert here.returncode == there.returncode == 0, here.stderr + there.stderr
    assert len(here.stdout.splitlines()) == 3
    assert here.stdout == there.stdout


@pytest.mark.slow
def test_it_passes_the_conformance_kit(site: Path) -> None:
    done = octavo("plugin", "test", "tandem", "--json", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["passed"]
    assert any("equal octavo_tandem.reference:reference" in c["name"] for c in report["checks"])


def test_a_version_that_forgets_to_turn_its_heads_fails_the_kit(site: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(site, tmp_path / "site")
    model = broken / "octavo_tandem" / "model.py"
    text = model.read_text()
    assert text.count("v_TKD, step, angles)") == 1
    model.write_text(text.replace("v_TKD, step, angles)", "v_TKD, step)"))
    done = octavo("plugin", "test", "tandem", site=broken)
    assert done.returncode == 1
    assert "FAIL model 'TandemForCausalLM', one key/value head: logits" in done.stdout
    assert "of their spread" in done.stdout


def test_a_modality_is_listed_with_its_model_and_functions(site: Path) -> None:
    done = octavo("plugin", "list", "--json", site=site)
    assert {plugin["name"]: plugin for plugin in json.loads(done.stdout)}["tables"][
        "registers"
    ] == {
        "modality": ["table"],
        "model": ["TableLlamaForCausalLM"],
        "input processor": ["TableLlamaForCausalLM"],
        "multimodal map": ["TableLlamaForCausalLM"],
    }


@pytest.mark.slow
def test_tables_decide_what_a_model_says_offline_and_in_a_chat(site: Path, tmp_path: Path) -> None:
    """Its names stand in the prompt as text, each of its rows is a token."""
    script = [sys.executable, str(TABLES / "ask.py"), str(tmp_path / "checkpoint")]
    done = run(script, site=site)
    assert done.returncode == 0, done.stderr
    columns, csv, one_row, chat = done.stdout.splitlines()
    lengths = [int(line.split()[0]) for line in (columns, csv, one_row)]
    assert lengths[0] == lengths[1] == lengths[2] + 2
    assert columns != csv
    assert "tokens -> " in chat


@pytest.mark.slow
def test_the_modality_and_its_model_pass_the_conformance_kit(site: Path) -> None:
    done = octavo("plugin", "test", "tables", site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "modality 'table': bombs are refused, in no memory: refused: a million" in done.stdout
    assert "with media and text beside them the same in chunks of 2 tokens" in done.stdout


@pytest.mark.slow
def test_its_functions_may_register_themselves_as_vllms_do(site: Path, tmp_path: Path) -> None:
    """``INPUT_REGISTRY`` and ``MULTIMODAL_REGISTRY`` in the place of two hooks."""
    marked = shutil.copytree(site, tmp_path / "site") / "octavo_tables"
    init = (marked / "__init__.py").read_text()
    hooks = init.index("@hookimpl\ndef register_inputs")
    (marked / "__init__.py").write_text(
        init[:hooks] + "from octavo_tables.inputs import place_tables, tensors_of\n"
    )
    text = (marked / "inputs.py").read_text()
    for function, mark in {
        "tensors_of": "MULTIMODAL_REGISTRY.register_input_mapper(NAME, kwargs={})",
        "place_tables": "INPUT_REGISTRY.register_input_processor(NAME, texts={'table': '<table>'})",
    }.items():
        text = text.replace(f"def {function}(", f"@{mark}\ndef {function}(")
    names = "from octavo_registry import INPUT_REGISTRY, MULTIMODAL_REGISTRY\n"
    text = text.replace(
        "if TYPE_CHECKING", f"{names}\nNAME = 'TableLlamaForCausalLM'\n\nif TYPE_CHECKING", 1
    )
    (marked / "inputs.py").write_text(text)
    for number, each in enumerate((site, marked.parent)):
        script = [sys.executable, str(TABLES / "ask.py"), str(tmp_path / f"checkpoint{number}")]
        done = run(script, site=each)
        assert done.returncode == 0, done.stderr
        (tmp_path / f"{number}.txt").write_text(done.stdout)
    assert (tmp_path / "0.txt").read_text() == (tmp_path / "1.txt").read_text()
