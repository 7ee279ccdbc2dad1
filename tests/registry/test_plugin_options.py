from __future__ import annotations

import pytest

from octavo_registry import OctavoError, PluginError, PluginHost, UnknownNameError, hookimpl


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
