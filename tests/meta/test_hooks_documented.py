"""Every hook has a test and a section in docs/hooks.md with its exact arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from octavo_registry.hooks import specs

ROOT = Path(__file__).parents[2]
HOOKS = {name: f for name, f in vars(specs).items() if hasattr(f, "octavo_spec")}


def test_the_hooks_are_found() -> None:
    assert {"register_models", "select_tool_parser", "request_finished"} <= HOOKS.keys()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_test_of_its_own(hook) -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert re.search(rf"def test_hook_{hook}(_\w+)?\(", tests)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_section_with_its_arguments(hook) -> None:
    arguments = ", ".join(inspect.signature(HOOKS[hook]).parameters)
    headings = (ROOT / "docs" / "hooks.md").read_text().splitlines()
    assert f"### `{hook}({arguments})`" in headings


def test_no_section_describes_a_hook_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "hooks.md").read_text()
    assert sorted(re.findall(r"^### `(\w+)\(", text, re.MULTILINE)) == sorted(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_docstring_and_a_name_that_tells_its_kind(hook) -> None:
    options = HOOKS[hook].octavo_spec
    assert (HOOKS[hook].__doc__ or "").strip()
    assert options["historic"] == hook.startswith("register_")
    assert options["firstresult"] == hook.startswith("select_")
