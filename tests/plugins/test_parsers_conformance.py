from __future__ import annotations

import re
from typing import Any

import pytest

from markdown import ROOT, code_blocks, rows
from octavo.testing.parsers import check_reasoning_parser, check_tool_parser
from octavo.tools import Reader, Reading, Stream, parsed
from octavo.tools import reader as reading
from octavo.tools.json_calls import json_calls
from octavo_plugins.tool_parsers.hermes.parser import HermesParser
from octavo_registry import PluginHost

PAGE = ROOT / "docs" / "tool-calling.md"
HOST = PluginHost.discover()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST.tool_parsers.names())
def test_every_tool_parser_passes_the_conformance_kit(name) -> None:
    checks = check_tool_parser(name, HOST.tool_parsers.load(name)(None))
    assert [check for check in checks if not check.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST.reasoning_parsers.names())
def test_every_reasoning_parser_passes_the_conformance_kit(name) -> None:
    checks = check_reasoning_parser(name, HOST.reasoning_parsers.load(name)(None))
    assert [check for check in checks if not check.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HOST.tool_parsers.names())
def test_text_that_waits_for_more_is_read_as_if_it_did_not(name, monkeypatch) -> None:
    monkeypatch.setattr(reading, "_HARD_PER_WAITING", 3)  # from the third hard character on
    checks = check_tool_parser(name, HOST.tool_parsers.load(name)(None))
    assert [check for check in checks if not check.passed] == []


def test_the_page_lists_the_parsers_that_are_registered() -> None:
    for heading, registry in (
        ("Tool parsers", HOST.tool_parsers),
        ("Reasoning parsers", HOST.reasoning_parsers),
    ):
        cells = [cell for cell, *_ in rows(PAGE, heading)]
        ours = [n for n in registry.names() if registry.info(n).target.startswith("octavo_plugins")]
        assert sorted(re.findall(r"`([^`]+)`", " ".join(cells))) == sorted(ours)


def test_the_page_shows_the_hermes_parser_as_it_is() -> None:
    source = (ROOT / "plugins/octavo_plugins/tool_parsers/hermes/parser.py").read_text()
    shown = next(block for block in code_blocks(PAGE, "python") if "class HermesParser" in block)
    assert shown.strip() in source


def test_the_loop_that_the_page_explains_reads_hermes() -> None:
    block = next(block for block in code_blocks(PAGE, "python") if "def message" in block)
    names: dict[str, Any] = {"Reader": Reader, "Reading": Reading, "json_calls": json_calls}
    exec("from __future__ import annotations\n" + block, names)
    parser = HermesParser()
    for sample in parser.samples:
        for pieces in ([sample], list(sample)):
            assert parsed(Stream(names["message"]), *pieces) == parsed(parser.stream(), sample)
