"""Names that docstrings and pages put in code marks are names of something.

Nothing is imported: what a module, a class or a function defines is read from its source.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from markdown import ROOT
from octavo.vllm_paths import PATHS

TREES = {
    "octavo": ROOT / "framework",
    "octavo_registry": ROOT / "registry",
    "octavo_plugins": ROOT / "plugins",
    "octavo_kernels": ROOT / "kernels",
    "benchmarks": ROOT,
}
OF_OTHERS = {
    "FlexibleArgumentParser",
    "Generator",
    "_bias",
    "argparse",
    "do_sample",
    "lmformatenforcer",
    "maxTokens",
    "mem",
    "outlines_core",
    "save_pretrained",
    "tryfirst",
    "trylast",
}
"""What docstrings name of other packages and of their files, or as an example of a name."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def assigned(statement: ast.AST) -> Iterator[str]:
    targets = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for node in (node for target in targets for node in ast.walk(target)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


class Source:
    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.module = ".".join(path.relative_to(root).with_suffix("").parts)
        self.module = self.module.removesuffix(".__init__")
        self.tree = ast.parse(path.read_text())
        self.nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
        for node in ast.walk(self.tree):
            self.nodes[type(node)].append(node)
        texts = [
            node.value for node in self.nodes[ast.Expr] if isinstance(node.value, ast.Constant)
        ]
        self.docstrings = [node.value for node in texts if isinstance(node.value, str)]
        """Also those behind fields."""
        others = {id(node) for node in texts}
        constants = [node for node in self.nodes[ast.Constant] if id(node) not in others]
        self.strings = {node.value for node in constants if isinstance(node.value, str)}
        self.functions = [node for kind in FUNCTIONS for node in self.nodes[kind]]

    @cached_property
    def top(self) -> set[str]:
        """Names that others can import from the module; an ``__init__`` may hand some on lazily."""
        names = {each for statement in self.tree.body for each in assigned(statement)}
        names |= {(node.asname or node.name).split(".")[0] for node in self.nodes[ast.alias]}
        definitions = (*FUNCTIONS, ast.ClassDef)
        names |= {node.name for node in self.tree.body if isinstance(node, definitions)}
        return names | self.strings if self.path.name == "__init__.py" else names

    @cached_property
    def used(self) -> set[str]:
        """All names in the module's code."""
        names = {word for text in self.strings for word in re.findall(r"\w+", text)}
        names |= {part for node in self.nodes[ast.alias] for part in node.name.split(".")}
        names |= {node.id for node in self.nodes[ast.Name]}
        names |= {node.attr for node in self.nodes[ast.Attribute]}
        return names | {node.arg for node in self.nodes[ast.keyword]}


class Names:
    """What all sources define."""

    def __init__(self) -> None:
        self.sources = [
            Source(path, root)
            for package, root in TREES.items()
            for path in (root / package).rglob("*.py")
        ]
        self.modules = {source.module: source for source in self.sources}
        self.strings = set().union(*(source.strings for source in self.sources))
        self.imported = {
            path.split(".")[0]
            for source in self.sources
            for path in (
                *(node.name for node in source.nodes[ast.alias]),
                *(node.module or "" for node in source.nodes[ast.ImportFrom]),
            )
        }
        self.vllm_paths = {
            ".".join(["octavo", *path.split(".")[:length]])
            for path in PATHS
            for length in range(1, path.count(".") + 2)
        }
        self.defined = {*dir(builtins), *keyword.kwlist, *self.strings}
        self.members: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        for source in self.sources:
            self.defined.update(source.module.split("."))
            self.defined |= {node.name for node in source.functions}
            self.defined |= {node.name for node in source.nodes[ast.ClassDef]}
            self.defined |= {node.arg for node in source.nodes[ast.arg]}
            for kind in (ast.Assign, ast.AnnAssign):
                for node in source.nodes[kind]:
                    self.defined.update(assigned(node))
            for node in source.nodes[ast.ClassDef]:
                self._add_class(node)

    def _add_class(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            self.bases[node.name].add(ast.unparse(name).split(".")[-1])
        for part in ast.walk(node):
            self.members[node.name].update(assigned(part))
            if isinstance(part, FUNCTIONS):
                self.members[node.name].add(part.name)

    def has_member(self, name: str, member: str) -> bool:
        """Also by inheritance; nothing is known of classes of other packages."""
        if name not in self.members:
            return name not in {"Generic", "NamedTuple", "Protocol", "object"}
        bases = self.bases[name] - {name}
        return member in self.members[name] or any(self.has_member(base, member) for base in bases)

    def resolves(self, name: str, source: Source | None = None) -> bool:
        """Whether something has that name, or the source's code speaks of it."""
        if name in self.strings or name in OF_OTHERS:
            return True
        first, *rest = name.split(".")
        if first in TREES:
            return self.is_path(name) or name in self.vllm_paths
        if rest and first in self.members:
            return self.has_member(first, rest[0])
        if rest and first in self.imported and first not in self.modules:  # of another package
            return True
        unknown = {first, *rest} - self.defined
        return not unknown or (source is not None and unknown <= source.used)

    def is_path(self, name: str) -> bool:
        """Whether it is a module, or a name that one hands out; in it nothing is looked for."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            source = self.modules.get(".".join(parts[:length]))
            if source is not None:
                return length == len(parts) or parts[length] in source.top
        return False


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


def named_in(text: str) -> Iterator[str]:
    """Names alone between double backticks, called or not; in an expression, those with dots."""
    for marked in re.findall(r"``([^`\n]+)``", text):
        if alone := re.fullmatch(r"([A-Za-z_][\w.]*)(\(\))?", marked):
            yield alone[1].rstrip(".")
        else:
            yield from re.findall(r"(?<![\w.\"'/\\{-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", marked)


def test_a_docstring_makes_sense_alone(names: Names) -> None:
    begins = ("Of ", "The same", "They ", "Those ", "By ")
    assert [
        f"{source.path.relative_to(ROOT)}: {text}"
        for source in names.sources
        for text in source.docstrings
        if text.startswith(begins)
    ] == []


def test_docstrings_name_what_there_is(names: Names) -> None:
    unknown = {
        f"{source.path.relative_to(ROOT)}: {name}"
        for source in names.sources
        for text in source.docstrings
        for name in named_in(text)
        if not names.resolves(name, source)
    }
    assert sorted(unknown) == []


def test_no_name_of_others_is_kept_that_nobody_uses(names: Names) -> None:
    used = {
        name for source in names.sources for text in source.docstrings for name in named_in(text)
    }
    assert used >= OF_OTHERS


def test_pages_name_paths_and_members_that_there_are(names: Names) -> None:
    unknown = []
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)", text):
            first = name.split(".")[0]
            if (first in TREES or first in names.members) and not names.resolves(name):
                unknown.append(f"{page.name}: {name}")
        for module, imported in re.findall(
            r"^ *from (octavo[\w.]*) import ([\w, ]+)", text, re.MULTILINE
        ):
            paths = [f"{module}.{name.split(' as ')[0].strip()}" for name in imported.split(",")]
            unknown += [f"{page.name}: {it}" for it in paths if not names.resolves(it)]
    assert unknown == []


@pytest.mark.parametrize(
    "name",
    [
        "octavo.config.resolve",
        "octavo.no_room",
        "octavo.params.SamplingParam",
        "SamplingParams.max_token",
        "Scheduler._pack",
        "find_kernel_of_nobody",
    ],
)
def test_a_name_of_nothing_is_found(names: Names, name: str) -> None:
    assert list(named_in(f"as ``{name}()`` does")) == [name]
    assert not names.resolves(name)
