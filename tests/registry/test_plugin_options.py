from __future__ import annotations

import importlib

import pytest

from octavo_registry import (
    MediaPrompt,
    MediaSettings,
    OctavoError,
    PluginError,
    PluginHost,
    UnknownNameError,
    hookimpl,
)


class Tuned:
    OCTAVO_API = "1"

    @hookimpl
    def register_options(self, options):
        options.add("size", int, 4, "how large")
        options.add("ratio", float, 0.5, "how much")
        options.add("eager", bool, False, "whether at once")
        options.add("path", str, None, "where")


def host_with(**options: object) -> PluginHost:
    return PluginHost.discover(plugins=[Tuned()], options={"Tuned": options} if options else None)


def test_a_value_is_the_users_or_the_default(site) -> None:
    host = host_with(size=7)
    assert host.option("Tuned", "size") == 7
    assert host.option("Tuned", "ratio") == 0.5
    assert host.option("Tuned", "path") is None


def test_text_from_a_command_line_is_read_in_the_options_type(site) -> None:
    host = host_with(size="7", ratio="2", eager="TRUE", path="3")
    values = [host.option("Tuned", key) for key in ("size", "ratio", "eager", "path")]
    assert values == [7, 2.0, True, "3"]
    assert [type(value) for value in values] == [int, float, bool, str]


@pytest.mark.parametrize(
    ("key", "value"),
    [("size", "big"), ("size", 1.5), ("size", True), ("eager", "yes"), ("eager", 1), ("path", 3)],
)
def test_a_value_of_another_type_is_refused(site, key, value) -> None:
    with pytest.raises(PluginError, match=rf"option {key}={value!r} of plugin 'Tuned' must be"):
        host_with(**{key: value})


def test_an_unknown_key_or_plugin_lists_near_matches(site) -> None:
    with pytest.raises(UnknownNameError, match=r"'Tuned' has no option 'sice'; close: \['size'\]"):
        host_with(sice=3)
    with pytest.raises(UnknownNameError, match=r"named 'Tund'; close: \['Tuned'\]"):
        PluginHost.discover(plugins=[Tuned()], options={"Tund": {"size": 1}})


@pytest.mark.parametrize("arguments", [("size", int, 1, "x"), ("other", list, [], "x")])
def test_declaring_twice_or_of_another_type_is_refused(site, arguments) -> None:
    class Twice(Tuned):
        @hookimpl
        def register_options(self, options):
            Tuned.register_options(self, options)
            options.add(*arguments)

    with pytest.raises(OctavoError, match="plugin 'Twice' declares option"):
        PluginHost.discover(plugins=[Twice()])


TARGETS = """
class Takes:
    endpoints = None
    def __init__(self, server, *, options):
        self.options = options

class TakesNone:
    endpoints = None
    def __init__(self, server):
        self.options = "none"

def process(prompt, settings, *, options):
    return type(prompt)(token_ids=[options["size"]])
"""
HOOKS = """
told = []

@hookimpl
def register_options(options):
    options.add("size", int, 3, "how large")
    options.add("path", str, None, "where")

@hookimpl
def register_routes(routes):
    routes.add("takes", "optional_targets:Takes")
    routes.add("takes none", "optional_targets:TakesNone")

@hookimpl
def register_inputs(inputs):
    inputs.add("Any", "optional_targets:process")

@hookimpl
def select_chat_template(architecture, *, options):
    return f"{options['size']} of {architecture}"

@hookimpl
def engine_started(facts, *, options):
    told.append((facts, options["size"]))

@hookimpl
def request_finished(*, options):
    told.append(options["path"])
"""


def test_targets_choices_and_events_get_the_options_of_their_plugin(site) -> None:
    site.write("optional", HOOKS)
    (site.root / "optional_targets.py").write_text(TARGETS)
    options = {"optional": {"size": "8"}}
    host = PluginHost.discover(plugins=["optional"], options=options)
    given = {"size": 8, "path": None}
    assert host.routes.make("takes", None).options == given
    assert host.routes.make("takes none", None).options == "none"
    settings = MediaSettings(config={}, processors={})
    placed = host.inputs.process_input("Any", MediaPrompt(token_ids=[1]), settings)
    assert placed.token_ids == [8]
    asked = host.hook.select_chat_template(architecture="A", config={})
    assert asked == "8 of A"
    host.notify("engine_started", facts="facts")
    host.notify("request_finished", outcome="done")
    assert host.settle_events()
    assert importlib.import_module("optional").told == [("facts", 8), None]
    assert host.faults.counts == {}


def test_options_are_there_in_another_process(site) -> None:
    site.install("optional", HOOKS)
    (site.root / "optional_targets.py").write_text(TARGETS)
    host = PluginHost.discover(options={"optional": {"size": 9}})
    other = PluginHost.from_manifest(host.manifest())
    assert other.routes.make("takes", None).options["size"] == 9


def test_what_takes_options_of_a_plugin_without_any_gets_none(site) -> None:
    site.write("bare", HOOKS.replace("@hookimpl\ndef register_options", "def declares_nothing"))
    (site.root / "optional_targets.py").write_text(TARGETS)
    host = PluginHost.discover(plugins=["bare"])
    assert host.routes.make("takes", None).options == {}
