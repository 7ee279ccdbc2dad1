"""The locks under `locks/` hold a version of all that the project needs, within its ranges."""

from __future__ import annotations

import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from markdown import ROOT

LOCKS = ("py311", "py312", "py313")


def pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "locks" / f"{lock}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = chain(project["dependencies"], *project["optional-dependencies"].values())
    return [r for r in map(Requirement, texts) if r.name not in ("octavo", "torch")]


@pytest.mark.parametrize("lock", LOCKS)
def test_each_need_of_the_project_is_pinned_within_its_range(lock) -> None:
    found = pins(lock)
    wrong = [
        str(each)
        for each in requirements()
        if not each.specifier.contains(found.get(canonicalize_name(each.name), "0"))
    ]
    assert wrong == []


@pytest.mark.parametrize("lock", LOCKS)
def test_torch_and_its_cuda_packages_are_left_to_the_machine(lock) -> None:
    assert [n for n in pins(lock) if n in ("torch", "triton") or n.startswith("nvidia")] == []


def test_all_pythons_that_the_project_supports_have_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert {file.stem for file in (ROOT / "locks").glob("py*.txt")} == set(LOCKS)
