"""Tests do not depend on which plugins the developer has installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from octavo_registry import PluginHost, discovery


def declare(folder: Path) -> None:
    info = folder / "dist_foreign-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: dist-foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[octavo]\nforeign = foreign\n")


def test_what_a_test_puts_on_the_path_is_seen_and_what_is_installed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "foreign" in {plugin.name for plugin in discovery.installed_plugins()}
    environment = discovery.entry_points.__globals__
    monkeypatch.setitem(environment, "_INSTALLED", {*environment["_INSTALLED"], tmp_path})
    names = {plugin.name for plugin in discovery.installed_plugins()}
    assert "foreign" not in names
    assert "models_llama" in names


def test_all_plugins_of_a_test_are_octavos_own_in_its_processes_too() -> None:
    assert {plugin.distribution for plugin in PluginHost.discover().plugins} == {"octavo"}
    code = (
        "from octavo_registry import PluginHost, discovery;"
        "own = {p.distribution for p in PluginHost.discover().plugins};"
        "print(discovery.entry_points.__module__, *own)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "sitecustomize octavo\n", done.stderr


def test_other_groups_are_as_python_gives_them() -> None:
    assert "octavo" in {point.name for point in metadata.entry_points(group="console_scripts")}
    assert len(metadata.entry_points()) > 1
