"""The documentation points at what is there, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from markdown import ROOT, anchors, code_blocks, links, named_paths, rows
from octavo.cli.entry import BUILT_IN
from octavo_registry import PluginHost

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
KERNELS = {path.parent.name for path in (ROOT / "kernels").glob("*/*/reference.py")}
PICTURE = DOCS / "architecture.svg"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def dead(link: str, page: Path) -> bool:
    target, _, anchor = link.partition("#")
    if target.startswith("https://"):
        return False
    path = page.parent / target if target else page
    return not path.exists() or bool(anchor and anchor not in anchors(path))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_link_is_dead(page: Path) -> None:
    assert [link for link in links(page) if dead(link, page)] == []


@pytest.mark.parametrize("link", ["no_such_page.md", "plugins.md#no-such-heading"])
def test_a_dead_link_is_found(link: str) -> None:
    assert dead(link, DOCS / "hooks.md")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_paths_that_are_named_exist(page: Path) -> None:
    tops = (ROOT, page.parent)
    missing = [path for path in named_paths(page) if not any((top / path).exists() for top in tops)]
    assert missing == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=page_name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert any(link.startswith(f"docs/{page.name}") for link in links(ROOT / "README.md"))


def test_every_figure_of_the_readme_stands_among_the_results() -> None:
    claims = (ROOT / "README.md").read_text().partition("## What is different")[2]
    figures = re.findall(r"\d+\.\d+(?:\.\d+)?", claims.partition("## Use it")[0])
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert len(figures) > 10
    assert [figure for figure in figures if figure not in results] == []


def test_the_table_of_models_is_what_is_registered() -> None:
    table = rows(DOCS / "models.md", "Architectures with a plugin")
    listed = [name.strip("`") for name, *_ in table]
    models = PluginHost.discover().models
    ours = {
        name for name in models.names() if models.info(name).target.startswith("octavo_plugins")
    }
    assert sorted(listed) == sorted(ours - {"transformers"})


def test_the_table_of_kernels_is_what_there_is() -> None:
    cells = " ".join(cell for cell, *_ in rows(DOCS / "kernels.md", "The ops"))
    assert sorted(re.findall(r"`(\w+)`", cells)) == sorted(KERNELS)


def test_the_words_are_those_of_the_code() -> None:
    sources = [path for top in ("framework", "registry") for path in (ROOT / top).rglob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    names = re.findall(r"`([A-Za-z.]*[A-Z][A-Za-z]+)`", (DOCS / "words.md").read_text())
    assert len(names) > 10
    assert [
        name for name in names if not re.search(rf"^class {name}\b|^{name} = ", code, re.M)
    ] == []


def test_every_command_is_documented() -> None:
    (summary, *_) = code_blocks(DOCS / "cli.md", "")
    listed = [line.split()[1] for line in summary.splitlines() if line.startswith("octavo ")]
    assert sorted(listed) == sorted(BUILT_IN)


def test_the_picture_names_kernels_that_exist() -> None:
    texts = ElementTree.parse(PICTURE).iterfind(".//{*}text[@class='op']")
    names = [name for text in texts for name in text.itertext()]
    assert names
    assert set(names) <= KERNELS
