from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.skeleton import KINDS
from octavo_registry import PluginHost

ENGINE = (
    "octavo_plugins.attention.torch",
    "octavo_plugins.executors.local",
    "octavo_plugins.sources.local",
)
"""What a model needs to run; ``site`` hides what is installed."""
REGISTERED = {
    "attention": {"attention backend": ["my_attention"]},
    "command": {"command": ["my_command"]},
    "guided": {"guided backend": ["my_guided"]},
    "logits_processor": {"logits processor": ["my_logits_processor"]},
    "model": {"model": ["MyModelForCausalLM"]},
    "reasoning_parser": {"reasoning parser": ["my_reasoning_parser"]},
    "source": {"model source": ["my_source"]},
    "tool_parser": {"tool parser": ["my_tool_parser"]},
}


@pytest.fixture
def make(site, monkeypatch, capsys):
    """Write a skeleton by the command and make its package importable."""

    def make(kind: str) -> Path:
        folder = site.root / f"folder-{kind}"
        assert main(["plugin", "new", kind, f"my_{kind}", "--dir", str(folder)]) == 0
        assert f"octavo plugin test my_{kind}" in capsys.readouterr().out
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        return folder

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_registers_itself(make, kind) -> None:
    folder = make(kind)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["octavo"] == {f"my_{kind}": f"octavo_my_{kind}"}
    host = PluginHost.discover(plugins=[f"octavo_my_{kind}"])
    assert host.registrations(f"octavo_my_{kind}") == REGISTERED[kind]
    compile((folder / "tests" / f"test_my_{kind}.py").read_text(), "test", "exec")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] if k == "model" else []) for k in KINDS],
)
def test_a_new_plugin_passes_the_conformance_kit(make, kind, capsys) -> None:
    make(kind)
    module = f"octavo_my_{kind}"
    plugins = [*ENGINE, module] if kind == "model" else [module]
    options = [option for name in plugins for option in ("--plugin", name)]
    code = main(["plugin", "test", module, *options, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    assert report["passed"]
    assert report["plugin"] == module


def test_an_existing_folder_is_never_written_to(site, capsys) -> None:
    (site.root / "kept.txt").write_text("mine")
    assert main(["plugin", "new", "source", "other", "--dir", str(site.root)]) == 2
    assert "exists already; give another folder with --dir" in capsys.readouterr().err
    assert [path.name for path in site.root.iterdir()] == ["kept.txt"]
