from __future__ import annotations

import sys

import pytest

from octavo_registry import (
    DuplicateNameError,
    PluginError,
    PluginHost,
    UnknownNameError,
    hookimpl,
)

ADDS = """
@hookimpl
def register_models(models):
    models.add("{name}", "far.away:{name}")
"""


class ObjectPlugin:
    OCTAVO_API = "1"

    @hookimpl
    def register_sources(self, sources):
        sources.add("here", "far.away:Source")


def test_installed_plugins_load_by_name_and_know_their_origin(site) -> None:
    site.install("zebra", ADDS.format(name="Z"), version="2.5")
    site.install("mouse", ADDS.format(name="M"), name="ape")
    host = PluginHost.discover()
    assert [(p.name, p.module, p.distribution, p.version) for p in host.plugins] == [
        ("ape", "mouse", "dist-mouse", "1.0"),
        ("zebra", "zebra", "dist-zebra", "2.5"),
    ]
    assert host.models.info("Z").plugin == "zebra"
    assert host.registrations("ape") == {"model": ["M"]}


def test_a_disabled_plugin_is_never_imported(site) -> None:
    site.install("broken", "1 / 0")
    host = PluginHost.discover(disabled=["broken"])
    assert host.plugins == ()
    assert "broken" not in sys.modules


def test_disabling_an_unknown_plugin_lists_near_matches(site) -> None:
    site.install("mouse")
    with pytest.raises(UnknownNameError, match=r"no plugin named 'mose'.*close: \['mouse'\]"):
        PluginHost.discover(disabled=["mose"])


def test_import_paths_and_objects_are_added_after_installed_ones(site) -> None:
    site.install("zebra")
    site.write("ape", ADDS.format(name="A"))
    host = PluginHost.discover(plugins=["ape", ObjectPlugin()])
    assert [p.name for p in host.plugins] == ["zebra", "ape", "ObjectPlugin"]
    assert host.sources.info("here").plugin == "ObjectPlugin"
    assert host.models.info("A").plugin == "ape"


def test_an_import_path_that_is_installed_too_is_loaded_once(site) -> None:
    site.install("mouse", ADDS.format(name="M"), name="ape")
    host = PluginHost.discover(plugins=["mouse"])
    assert [p.name for p in host.plugins] == ["ape"]


def test_a_plugin_that_cannot_be_imported_is_named_and_never_skipped(site) -> None:
    site.install("broken", "1 / 0")
    with pytest.raises(PluginError, match=r"'broken'.*ZeroDivisionError: division by zero"):
        PluginHost.discover()


@pytest.mark.parametrize("declared", ["None", "'2'", "1", "'1.0'"])
def test_another_api_version_is_refused(site, declared) -> None:
    site.install("mouse", f"OCTAVO_API = {declared}")
    with pytest.raises(PluginError, match=r"'mouse' \(mouse\) declares OCTAVO_API = .*'1'"):
        PluginHost.discover()


def test_a_misspelt_hook_is_refused_with_near_matches(site) -> None:
    site.install("mouse", "@hookimpl\ndef register_model(models): pass")
    with pytest.raises(PluginError, match=r"no hook 'register_model'; close: \['register_models'"):
        PluginHost.discover()


def test_a_hook_without_the_decorator_is_refused(site) -> None:
    site.install("mouse", "def register_models(models): pass")
    with pytest.raises(PluginError, match="register_models lacks the @hookimpl decorator"):
        PluginHost.discover()


def test_an_argument_that_the_hook_lacks_is_refused(site) -> None:
    site.install("mouse", "@hookimpl\ndef register_models(models, tokenizers): pass")
    with pytest.raises(PluginError, match=r"'mouse'.*tokenizers.*can not be found.*\(models\)"):
        PluginHost.discover()


def test_an_event_of_the_old_form_hears_the_new_name(site) -> None:
    site.install("mouse", "@hookimpl\ndef engine_started(plan): pass")
    with pytest.raises(PluginError, match=r"'plan'.*it is called engine_started\(facts\)"):
        PluginHost.discover()


def test_a_wrapper_around_registration_is_refused(site) -> None:
    site.install("mouse", "@hookimpl(wrapper=True)\ndef register_models(models): yield")
    with pytest.raises(PluginError, match=r"'mouse'.*historic"):
        PluginHost.discover()


def test_the_old_style_of_wrapper_is_refused(site) -> None:
    site.install("mouse", "@hookimpl(hookwrapper=True)\ndef engine_started(facts): yield")
    with pytest.raises(PluginError, match="wrapper=True"):
        PluginHost.discover()


def test_an_entry_point_that_is_no_module_is_refused(site) -> None:
    site.declare("mouse", "mouse:plugin", distribution="dist-mouse")
    with pytest.raises(PluginError, match="'mouse:plugin' must be a module"):
        PluginHost.discover()


def test_two_distributions_with_one_plugin_name_are_refused(site) -> None:
    site.install("mouse", name="ape")
    site.install("horse", name="ape")
    with pytest.raises(PluginError, match="two plugins are named 'ape'"):
        PluginHost.discover()


def test_nothing_stays_of_a_plugin_that_raises_while_registering(site) -> None:
    class Raises(ObjectPlugin):
        @hookimpl
        def register_models(self, models):
            models.add("Early", "far.away:Early")

        @hookimpl
        def register_options(self, options):
            options.add("key", int, 1, "a number")

        @hookimpl
        def register_tokenizers(self, tokenizers):
            raise RuntimeError("too late")

        @hookimpl
        def engine_started(self, facts):
            pytest.fail("an unregistered plugin was told of an event")

    host = PluginHost.discover()
    with pytest.raises(PluginError, match="'Raises' failed in register_tokenizers: Runt"):
        host.register(Raises())
    assert host.plugins == ()
    assert host.models.names() == host.sources.names() == []
    assert host.options.declared() == []
    host.notify("engine_started", facts=None)
    assert host.settle_events()
    host.register(ObjectPlugin())
    assert host.sources.names() == ["here"]


def test_a_name_taken_by_another_plugin_is_refused(site) -> None:
    site.install("ape", ADDS.format(name="Same"))
    site.install("zebra", ADDS.format(name="Same").replace("far", "further"))
    with pytest.raises(DuplicateNameError, match=r"'ape'.*'zebra'.*disable"):
        PluginHost.discover()
    assert PluginHost.discover(disabled=["zebra"]).models.names() == ["Same"]


def test_hosts_share_nothing(site) -> None:
    site.install("ape", ADDS.format(name="A"))
    first, second = PluginHost.discover(), PluginHost.discover(disabled=["ape"])
    assert first.models.names() == ["A"]
    assert second.models.names() == []


def test_loading_a_model_protects_its_plugin(site) -> None:
    site.install(
        "ape",
        """
        class Model: pass
        @hookimpl
        def register_models(models): models.add("A", "ape:Model")
        @hookimpl
        def engine_started(facts): 1 / 0
        """.replace("\n        ", "\n"),
    )
    host = PluginHost.discover()
    host.models.load("A")
    host.notify("engine_started", facts=None)
    assert host.settle_events()
    assert host.faults.counts == {("ape", "engine_started"): 1}
    assert host.faults.quarantined == {}


def test_a_plugin_that_ends_the_process_is_an_error_that_names_it(site) -> None:
    site.install("leaver", "import sys\nsys.exit(3)")
    with pytest.raises(PluginError, match=r"'leaver' cannot be imported .*SystemExit: 3"):
        PluginHost.discover()


def test_a_plugin_that_ends_the_process_in_a_hook_is_an_error_that_names_it(site) -> None:
    site.install("leaver", "@hookimpl\ndef register_models(models): raise SystemExit(3)")
    with pytest.raises(PluginError, match="'leaver' failed in register_models: SystemExit: 3"):
        PluginHost.discover()
