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
    markers = {markers}
    def __init__(self, tokenizer=None): pass
    def form(self, tools, *, parallel): return {form}
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
FORM = """
from octavo_registry import CallForm
from octavo_registry.structure import Literal
FORM = CallForm(calls=Literal("{text}"), triggers=("CA",))
"""


def parser(module: str, feed: str = SOUND, *, form: str = "None", markers: str = "()") -> str:
    return PARSER.format(module=module, feed=feed, form=form, markers=markers)


@pytest.fixture(autouse=True)
def short_texts(monkeypatch) -> None:
    """The kit's long texts, in a length that is enough for these parsers."""
    monkeypatch.setattr("octavo.testing.parsers.HARD_CHARACTERS", 2**12)


def failures(host: PluginHost, plugin: str) -> dict[str, str]:
    return {check.name: check.detail for check in run(host, plugin).checks if not check.passed}


def test_a_sound_parser_passes(site) -> None:
    site.write("sound", parser("sound"))
    report = run(PluginHost.discover(plugins=["sound"]), "sound")
    assert report.passed
    assert len(report.checks) == 9


def test_a_parser_that_depends_on_cuts_is_found(site) -> None:
    feed = 'self.text += text.replace("CALL", "call"); return []'
    site.write("leaky", parser("leaky", feed))
    found = failures(PluginHost.discover(plugins=["leaky"]), "leaky")
    assert "tool parser 'shout' does not depend on where text is cut" in found
    assert "tool parser 'shout' finds tool_calls in one of its samples" in found


def test_a_parser_that_changes_plain_text_is_found(site) -> None:
    feed = "self.text += text.replace('2', '3'); return []"
    site.write("loud", parser("loud", feed))
    found = failures(PluginHost.discover(plugins=["loud"]), "loud")
    assert list(found) == ["tool parser 'shout' leaves plain text as it is"]


def test_a_parser_that_loses_text_is_found(site) -> None:
    feed = 'for c in text: self.text += "" if self.text.endswith("octav") else c\n        return []'
    site.write("lossy", parser("lossy", feed))
    found = failures(PluginHost.discover(plugins=["lossy"]), "lossy")
    assert list(found) == ["tool parser 'shout' loses no text"]
    assert "'octavo' of 'octavoso: CALL now'" in found["tool parser 'shout' loses no text"]


def test_a_parser_that_reads_all_again_at_each_piece_is_found(site, monkeypatch) -> None:
    monkeypatch.setattr("octavo.testing.parsers.HARD_CHARACTERS", 2**14)
    monkeypatch.setattr("octavo.testing.parsers.HARD_SECONDS", 0.2)
    feed = "self.text += text; 'x' + 3 * self.text.swapcase(); return []"
    site.write("slow", parser("slow", feed))
    found = failures(PluginHost.discover(plugins=["slow"]), "slow")
    assert list(found) == ["tool parser 'shout' is done with hard text in time"]
    assert (
        "pieces take more than 0.2 s" in found["tool parser 'shout' is done with hard text in time"]
    )


def test_a_parser_that_does_not_read_its_own_form_is_found(site) -> None:
    title = "tool parser 'shout' reads all that its form admits"
    for module, text, problem in (
        ("quiet", "CAR", "'CAR' gives ParsedMessage(content='CAR'"),
        ("late", "a CALL", "'a CALL' begins with none of the triggers ('CA',)"),
    ):
        site.write(module, FORM.format(text=text) + parser(module, form="FORM"))
        found = failures(PluginHost.discover(plugins=[module]), module)
        assert found[title].startswith(problem)


def test_markers_that_are_one_text_are_found(site) -> None:
    site.write("marked", parser("marked", markers="'CALL'"))
    found = failures(PluginHost.discover(plugins=["marked"]), "marked")
    assert list(found) == ["tool parser 'shout' lists its special tokens"]


REASONING = """
from octavo_registry import Delta
from octavo_registry.structure import TextUntil

@hookimpl
def register_reasoning_parsers(parsers):
    parsers.add("muse", "{module}:Parser")

class Parser:
    samples = ("because.SO yes",)
    markers = ()
    def __init__(self, tokenizer=None): pass
    def before_answer(self, prompt): return TextUntil(("{end}",))
    def stream(self, tools=None, *, prompt=None): return Stream()

class Stream:
    def __init__(self): self.text = ""
    def feed(self, text):
        self.text += text
        return []
    def finish(self):
        thought, end, answer = self.text.partition("SO")
        if not end: thought, answer = "", thought
        return [Delta(reasoning=thought or None, content=answer or None)]
"""


@pytest.mark.parametrize(("end", "passes"), [("SO", True), ("THUS", False)])
def test_a_reasoning_parser_must_find_the_answer_behind_what_it_expects(site, end, passes) -> None:
    site.write("musing", REASONING.format(module="musing", end=end))
    found = failures(PluginHost.discover(plugins=["musing"]), "musing")
    title = "reasoning parser 'muse' finds the answer behind the reasoning"
    assert list(found) == ([] if passes else [title])


def test_a_close_tag_of_one_character_repeated_is_no_fault(site) -> None:
    source = REASONING.format(module="round", end=")))")
    site.write("round", source.replace("because.SO yes", "because))) yes").replace('"SO"', '")))"'))
    assert failures(PluginHost.discover(plugins=["round"]), "round") == {}


TWO_SOURCES = """
@hookimpl
def register_sources(sources):
    sources.add("gone", "no_such_module:Source")
    sources.add("here", "{module}:Source")

@hookimpl
def select_tool_parser(architecture):
    raise KeyError(architecture)

class Source:
    uses_network = False
    def find(self, name, *, revision): return None
"""


def test_a_failure_of_one_check_does_not_pause_the_plugin_for_the_others(site) -> None:
    site.write("two", TWO_SOURCES.format(module="two"))
    host = PluginHost.discover(plugins=["two"])
    found = failures(host, "two")
    assert list(found) == ["model source 'gone' keeps its protocol"]
    assert host.faults.quarantined == {}


@pytest.mark.parametrize("error", ["ValueError(text)", "SystemExit(0)"])
def test_a_parser_that_raises_is_a_failed_check_and_no_exception(site, error) -> None:
    site.write("raising", parser("raising", f"raise {error}"))
    found = failures(PluginHost.discover(plugins=["raising"]), "raising")
    assert len(found) == 5
    assert all(detail.startswith(f"raised {error.split('(')[0]}") for detail in found.values())


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


MUTE = """
@hookimpl
def register_models(models):
    models.add("Mute", "mute:Mute")

class Mute:
    def __init__(self, spec): pass
    def cache_specs(self): pass
    def embed(self, tokens_T, media): pass
    def forward(self, x_TD, step): pass
    def load(self, tensors): pass
"""


def test_a_model_that_is_to_write_and_has_no_logits_is_found(site) -> None:
    site.write("mute", MUTE)
    found = failures(PluginHost.discover(plugins=["mute"]), "mute")
    assert found == {"model 'Mute' has logits": "Mute.logits is missing"}
