"""The pages on how Octavo is built name files and calls that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import ImageFont

from markdown import ROOT

FRAMEWORK = ROOT / "framework" / "octavo"
PLUGINS = ROOT / "plugins" / "octavo_plugins"
LIFE = (ROOT / "docs" / "life-of-a-request.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PICTURE = ElementTree.parse(ROOT / "docs" / "architecture.svg").getroot()
CALL = re.compile(r"^ *([\w.]+) +([\w/]+\.py)(?: |$)", re.MULTILINE)
SIZES = {"name": 16.0, "where": 13.0, "path": 13.0}
WIDER = 1.2
"""Common fonts are as much wider than Pillow's own."""


def path_of(named: str) -> Path:
    if named.startswith("plugins/"):
        return PLUGINS / named.removeprefix("plugins/")
    return FRAMEWORK / named


@cache
def defined_in(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        found |= {node.name} if hasattr(node, "name") else set()
    return found


def test_calls_stand_in_the_files_that_the_page_names() -> None:
    calls = CALL.findall(LIFE)
    assert len(calls) > 25
    assert [f"{c} in {file}" for c, file in calls if c not in defined_in(path_of(file))] == []


@pytest.mark.parametrize("page", [LIFE, ARCHITECTURE], ids=["life", "architecture"])
def test_pages_name_files_and_folders_that_there_are(page: str) -> None:
    files = re.findall(r"(?<![\w/.])((?:\w+/)+\w*(?:\.py)?)(?![\w./])", page)
    ours = [each for each in files if each.endswith((".py", "/"))]
    assert len(ours) > 10
    assert [each for each in ours if not (path_of(each).exists() or (ROOT / each).exists())] == []


def test_the_picture_s_rooms_are_there() -> None:
    texts = [text for text in PICTURE.iterfind(".//{*}text") if "path" in text.get("class", "")]
    rooms = [room for text in texts for room in (text.text or "").split()]
    assert len(rooms) > 10
    assert [room for room in rooms if not (FRAMEWORK / room).is_dir()] == []


def width(text: ElementTree.Element) -> float:
    size = next((n for c, n in SIZES.items() if c in text.get("class", "").split()), 14.0)
    gaps = sum(float(part.get("dx", "0")) for part in text.iterfind("{*}tspan"))
    return WIDER * ImageFont.load_default(size).getlength("".join(text.itertext())) + gaps


def ends(text: ElementTree.Element) -> tuple[float, float]:
    """Where it begins and ends from left to right."""
    at, wide, classes = float(text.get("x", "0")), width(text), text.get("class", "").split()
    begin = at - wide / 2 if "mid" in classes else at - wide if "end" in classes else at
    return begin, begin + wide


def holds(box: ElementTree.Element, text: ElementTree.Element) -> bool:
    """Whether the place by which the text stands is in the box."""
    left, top, wide, high = (float(box.get(name, "0")) for name in ("x", "y", "width", "height"))
    across, down = (float(text.get(name, "0")) for name in "xy")
    return left <= across <= left + wide and top <= down <= top + high


def test_no_text_of_the_picture_leaves_its_box_or_meets_another() -> None:
    boxes = list(PICTURE.iterfind(".//{*}rect"))
    texts = list(PICTURE.iterfind(".//{*}text"))
    assert len(texts) > 40
    for text in texts:
        said, (begin, end) = "".join(text.itertext()), ends(text)
        box = min((b for b in boxes if holds(b, text)), key=lambda b: float(b.get("width", "0")))
        left, wide = float(box.get("x", "0")), float(box.get("width", "0"))
        assert left <= begin <= end <= left + wide, said
        beside = [t for t in texts if t is not text and t.get("y") == text.get("y")]
        for other in beside:
            other_begin, other_end = ends(other)
            assert end <= other_begin or other_end <= begin, said
