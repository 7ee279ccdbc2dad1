"""The kit must fail what is wrong: each test breaks one thing."""

from __future__ import annotations

import pytest

from octavo.testing.kit import run
from octavo.testing.report import Check, Report
from octavo_registry import PluginHost, UnknownNameError

PARSER = """
from octavo_registry import Delta

@hookimpl
def register_tool_parsers(parsers):
    parsers.add("shout", "{module}:Parser")

class Parser:
    samples = ("so: CALL now",)
    def __init__(self, tokenizer=None): pass
    def stream(self, tools=None): return Stream()

class Stream:
    def __init__(self): self.text = ""
    def feed(self, text):
        {feed}
    def finish(self):
        before, call, after = self.text.partition("CALL")
        deltas = [Delta(tool_call_index=0, name="x", arguments="{{}}")] if call else []
        return [Delta(content=before + after), *deltas] if self.text else []
"""
SOUND = "self.text += text; return []"


def failures(host: PluginHost, plugin: str) -> dict[str, str]:
    return {check.name: check.detail for check in run(host, plugin).checks if not check.passed}


def test_a_sound_parser_passes(site) -> None:
    site.write("sound", PARSER.format(module="sound", feed=SOUND))
    report = run(PluginHost.discover(plugins=["sound"]), "sound")
    assert report.passed
    assert len(report.checks) == 5


def test_a_parser_that_depends_on_cuts_is_found(site) -> None:
    feed = 'self.text += text.replace("CALL", "call"); return []'
    site.write("leaky", PARSER.format(module="leaky", feed=feed))
    found = failures(PluginHost.discover(plugins=["leaky"]), "leaky")
    assert "tool parser 'shout' does not depend on where text is cut" in found
    assert "tool parser 'shout' finds tool_calls in one of its samples" in found


def test_a_parser_that_changes_plain_text_is_found(site) -> None:
    feed = "self.text += text.upper(); return []"
    site.write("loud", PARSER.format(module="loud", feed=feed))
    found = failures(PluginHost.discover(plugins=["loud"]), "loud")
    assert list(found) == ["tool parser 'shout' leaves plain text as it is"]


def test_a_parser_that_raises_is_a_failed_check_and_no_exception(site) -> None:
    site.write("raising", PARSER.format(module="raising", feed="raise ValueError(text)"))
    found = failures(PluginHost.discover(plugins=["raising"]), "raising")
    assert len(found) == 3
    assert all(detail.startswith("raised ValueError") for detail in found.values())


def test_a_plugin_module_that_imports_torch_is_found(site) -> None:
    (site.root / "torch.py").touch()  # found before the real one, which takes seconds to import
    site.write("heavy", "import torch")
    found = failures(PluginHost.discover(plugins=["heavy"]), "heavy")
    assert found["the plugin's module imports neither torch nor transformers"] == (
        "importing heavy imports torch"
    )
    assert found["the plugin registers something"] == "nothing found"


SOURCE = """
@hookimpl
def register_sources(sources):
    sources.add("here", "{module}:Source")

class Source:
    uses_network = False
    {find}
"""


@pytest.mark.parametrize(
    ("find", "detail"),
    [
        ("pass", "Source.find is missing"),
        ("def find(self, name): pass", "Source.find cannot be called as find(self, name: str, *"),
        ("def find(self, name, revision, more): pass", "Source.find cannot be called as find("),
    ],
)
def test_a_target_that_breaks_its_protocol_is_found(site, find, detail) -> None:
    site.write("odd", SOURCE.format(module="odd", find=find))
    found = failures(PluginHost.discover(plugins=["odd"]), "odd")
    assert found["model source 'here' keeps its protocol"].startswith(detail)


def test_a_target_that_cannot_be_loaded_is_found(site) -> None:
    site.write("odd", SOURCE.format(module="gone", find="pass"))
    found = failures(PluginHost.discover(plugins=["odd"]), "odd")
    assert "No module named 'gone'" in found["model source 'here' keeps its protocol"]


def test_an_unknown_plugin_lists_near_matches(site) -> None:
    site.install("mouse")
    with pytest.raises(UnknownNameError, match=r"'mose' is loaded; close: \['mouse'\]"):
        run(PluginHost.discover(), "mose")


def test_a_report_without_checks_proves_nothing() -> None:
    assert not Report(plugin="p", checks=()).passed


def test_a_report_shows_each_check_and_a_verdict() -> None:
    checks = (Check(name="a", passed=True), Check(name="b", passed=False, detail="why"))
    assert Report(plugin="p", checks=checks).as_text().splitlines() == [
        "ok   a",
        "FAIL b: why",
        "p: FAILED, 2 checks, 1 failed",
    ]
