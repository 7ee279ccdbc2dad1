"""Reads the documentation: its blocks of code, its links and what they may point at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Block:
    """Code between fences; ``info`` is what stands behind the first one."""

    info: str
    code: str


def code_blocks(path: Path, info: str) -> list[str]:
    """The code of all blocks of that kind, in order."""
    return [block.code for block in _blocks(path.read_text()) if block.info == info]


def links(path: Path) -> list[str]:
    """The targets of links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", _prose(path))


def named_paths(path: Path) -> list[str]:
    """What is written as `code` and looks like a path from the top of the repository."""
    folders = "|".join(entry.name for entry in ROOT.iterdir() if entry.name.isidentifier())
    return re.findall(rf"`((?:{folders})/[\w./-]*)`", _prose(path))


def anchors(path: Path) -> set[str]:
    """The names by which links may point at headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(path: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its first row."""
    text = _prose(path).partition(f"# {heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table, f"{path.name} has no table below {heading!r}"
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


_FENCED = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def _blocks(text: str) -> list[Block]:
    return [Block(info=info, code=code) for info, code in _FENCED.findall(text)]


def _prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text())
