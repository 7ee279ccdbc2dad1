"""The environment's variables are read in one file, and are all on one page."""

from __future__ import annotations

import re

import pytest

from markdown import ROOT, rows
from octavo.environment import KERNEL_CACHE, OFFLINE, VARIABLES, Variable, misspelled
from octavo.errors import ConfigError

PAGE = ROOT / "docs" / "environment.md"
KERNELS = ROOT / "kernels" / "octavo_kernels"
READS = re.compile(r"""(?:environ(?:\.get)?|getenv)[\[(]\s*f?["']?(\w+)""")


def test_the_page_has_a_row_of_each_variable() -> None:
    found = [tuple(row) for row in rows(PAGE, "Octavo's own")]
    assert found == [(f"`{v.name}`", v.kind, v.default, v.help) for v in VARIABLES]


def test_variables_are_read_in_one_file_and_by_the_kernels() -> None:
    found = {}
    for package in ("framework/octavo", "plugins/octavo_plugins", "registry/octavo_registry"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            names = [n for n in READS.findall(text) if n.startswith("OCTAVO_")]
            if names and path.name != "environment.py":
                found[str(path.relative_to(ROOT))] = names
    assert found == {}


def test_all_that_the_kernels_read_are_known() -> None:
    texts = "\n".join(path.read_text() for path in KERNELS.rglob("*.py"))
    read = {name for name in READS.findall(texts) if name.startswith("OCTAVO_")}
    assert KERNEL_CACHE.name in read
    assert read <= {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), ("Yes", True), ("0", False), ("", False)]
)
def test_a_switch_is_on_or_off(value, is_on, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE.name, value)
    assert OFFLINE.is_on() == is_on


def test_a_switch_that_is_neither_on_nor_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE.name, "perhaps")
    with pytest.raises(ConfigError, match="OCTAVO_OFFLINE='perhaps' must be one of 1 true"):
        OFFLINE.is_on()


@pytest.mark.parametrize(("value", "wish"), [("1", True), ("please", True), ("0", False)])
def test_a_wish_holds_unless_it_is_off(value, wish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_WISH", value)
    assert Variable(name="A_WISH", kind="switch", help="").is_not_off() == wish


def test_a_misspelled_variable_is_named_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_LOGING_LEVEL", "DEBUG")
    monkeypatch.setenv("OCTAVO_SOMETHING_OF_A_PLUGIN", "1")
    assert misspelled() == ["OCTAVO_LOGING_LEVEL is not read; OCTAVO_LOGGING_LEVEL is"]
