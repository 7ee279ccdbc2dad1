"""What vLLM's documents import is found by its path, or told."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

import octavo
from markdown import ROOT
from octavo.vllm_paths import INSTEAD, PATHS, find_vllm_paths


@pytest.mark.parametrize("path", PATHS)
def test_a_name_is_found_by_its_path(path: str) -> None:
    module, _, name = f"octavo.{path}".rpartition(".")
    found: dict[str, object] = {}
    exec(f"from {module} import {name}", found)
    home, _, attribute = PATHS[path].partition(":")
    assert found[name] is getattr(import_module(home), attribute)


@pytest.mark.parametrize("path", INSTEAD)
def test_of_other_names_the_error_says_what_is_here(path: str) -> None:
    module, _, name = f"octavo.{path}".rpartition(".")
    is_module = name.islower()
    with pytest.raises(ImportError) as raised:
        exec(f"from octavo.{path} import Anything" if is_module else f"from {module} import {name}")
    assert str(raised.value).endswith(f"vLLM's; here: {INSTEAD[path]}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import octavo.model_executor.models.llama", "a model is a plugin"),
        ("from octavo.entrypoints.openai.api_server import run_server", "octavo serve"),
        ("from octavo.utils import random_uuid", "vLLM's own helpers"),
        ("from octavo.sampling_params import StructuredOutputsParams", "octavo.GuidedParams"),
        ("from octavo.outputs import ClassificationRequestOutput", "nothing yet"),
        ("from octavo.lora.layers import x", "docs/adapters.md"),
    ],
)
def test_what_lies_below_is_told_too(line: str, told: str) -> None:
    with pytest.raises(ImportError, match=told):
        exec(line)


@pytest.mark.parametrize(
    "line",
    [
        "import octavo.nonsense",
        "from octavo import nonsense",
        "from octavo.outputs import nonsense",
        "from octavo.sampling_params import nonsense",
        "import octavo.sampling_params.nonsense",
        "import octavo.inputs.promt",
    ],
)
def test_of_what_nobody_has_nothing_is_made_up(line: str) -> None:
    with pytest.raises(ImportError, match=r"nonsense|promt") as raised:
        exec(line)
    assert "vLLM" not in str(raised.value)


def test_names_that_are_nowhere_are_no_attributes() -> None:
    assert not hasattr(octavo, "nonsense")
    assert not hasattr(import_module("octavo.lora"), "__wrapped__")


def test_paths_are_looked_for_once() -> None:
    before = len(sys.meta_path)
    find_vllm_paths()
    assert len(sys.meta_path) == before


def test_pages_that_are_named_exist() -> None:
    texts = " ".join(INSTEAD.values()).replace(",", " ").split()
    pages = {word for word in texts if word.startswith("docs/")}
    assert len(pages) > 5
    assert [page for page in pages if not (ROOT / page).exists()] == []
