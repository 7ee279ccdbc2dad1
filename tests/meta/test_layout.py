"""The source tree keeps to its own rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "octavo_registry": ROOT / "registry" / "octavo_registry",
    "octavo": ROOT / "framework" / "octavo",
    "octavo_plugins": ROOT / "plugins" / "octavo_plugins",
    "octavo_kernels": ROOT / "kernels" / "octavo_kernels",
}
MAY_IMPORT = {
    "octavo_registry": {"octavo_registry"},
    "octavo": {"octavo", "octavo_registry", "octavo_kernels"},
    "octavo_plugins": set(PACKAGES),
    "octavo_kernels": {"octavo_kernels"},
}
FORBIDDEN_NAMES = {"utils.py", "misc.py", "common.py", "helpers.py"}
SOURCES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package) -> None:
    wrong = []
    for path in PACKAGES[package].rglob("*.py"):
        for module in imported_modules(ast.parse(path.read_text())):
            top = module.partition(".")[0]
            if top in PACKAGES and top not in MAY_IMPORT[package]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_no_file_is_too_long() -> None:
    folders = [*PACKAGES.values(), *(ROOT / name for name in ("tests", "benchmarks", "examples"))]
    limits = {"*.py": 400, "*.cu": 800}
    too_long = [
        f"{path.relative_to(ROOT)}: {num_lines} lines"
        for folder in folders
        for pattern, limit in limits.items()
        for path in folder.rglob(pattern)
        if (num_lines := len(path.read_text().splitlines())) > limit
    ]
    assert too_long == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [str(path) for path in SOURCES if path.name in FORBIDDEN_NAMES] == []


def unpickles(tree: ast.AST) -> bool:
    """Whether a module imports a pickle, or calls what unpickles on its own."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    if any(module.partition(".")[0] in modules for module in imported_modules(tree)):
        return True
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("torch", "load"), ("np", "load"), ("numpy", "load")}
        for node in ast.walk(tree)
    )


def test_nothing_is_pickled() -> None:
    assert [str(path) for path in SOURCES if unpickles(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "x = torch.load(path)"]
)
def test_the_search_for_pickles_finds_them(source) -> None:
    assert unpickles(ast.parse(source))


def test_no_module_rebinds_globals() -> None:
    found = [
        str(path)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Global)
    ]
    assert found == []
