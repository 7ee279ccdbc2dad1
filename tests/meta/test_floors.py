"""The rooms of the framework stand on floors, and a room imports lower floors and itself only.

A room is a folder or a file of ``framework/octavo``, and ``guided/schema``. Imports within
functions and under ``TYPE_CHECKING`` count. ``octavo`` itself only hands on names, and is no room:
the framework imports nothing from there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from markdown import ROOT, rows

FRAMEWORK = ROOT / "framework"
FLOORS = {
    "wording": 1,
    "version": 1,
    "limits": 1,
    "vllm_names": 1,
    "vllm_paths": 1,
    "host_memory": 1,
    "errors": 2,
    "outputs": 2,
    "environment": 3,
    "guided.schema": 3,
    "params": 4,
    "config": 4,
    "client": 4,
    "pooled_calls": 4,
    "messages": 5,
    "model_folder": 5,
    "multimodal": 5,
    "steps": 6,
    "weights": 6,
    "detokenizing": 6,
    "guided": 6,
    "cache": 7,
    "residency": 7,
    "layers": 7,
    "adapters": 7,
    "tools": 7,
    "scheduling": 8,
    "sampling": 8,
    "inputs": 8,
    "execution": 9,
    "observability": 9,
    "engine": 10,
    "worker": 10,
    "frontend": 11,
    "server": 12,
    "benchmarking": 12,
    "testing": 13,
    "cli": 14,
    "__main__": 15,
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((FRAMEWORK / "octavo").rglob("*.py")):
        parts = path.relative_to(FRAMEWORK).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """Of the longest name, so that a room may lie within another."""
    inside = module.removeprefix("octavo").removeprefix(".")
    parts = inside.split(".")
    within = ".".join(parts[:2])
    return within if within in FLOORS else parts[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def arrows() -> set[str]:
    """Imports that are not allowed."""
    return {
        f"{module} -> {target}"
        for module, path in MODULES.items()
        if module != "octavo"
        for target in imported(path)
        if room_of(target) != room_of(module)
        and (target == "octavo" or FLOORS[room_of(target)] >= FLOORS[room_of(module)])
    }


def test_each_room_has_a_floor() -> None:
    assert {room_of(module) for module in MODULES} - {""} == set(FLOORS)


def test_the_page_has_each_room_on_its_floor() -> None:
    shown = {}
    for floors, rooms, _ in rows(ROOT / "docs" / "architecture.md", "Rooms and floors"):
        numbers = [int(number) for number in floors.split(", ")]
        groups = rooms.split(", ") if len(numbers) > 1 else [rooms]
        for number, group in zip(numbers, groups, strict=True):
            names = re.findall(r"`([^`]+)`", group)
            shown |= {name.replace("/", "."): number for name in names}
    assert shown == FLOORS


def test_a_room_imports_lower_floors_alone() -> None:
    assert arrows() == set()


def test_scheduling_loads_no_torch() -> None:
    names = [module for module in MODULES if room_of(module) == "scheduling"]
    code = f"import sys\nfor name in {names}: __import__(name)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_public_class_has_the_name_of_another() -> None:
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()
