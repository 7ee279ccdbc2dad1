from __future__ import annotations

import json
import sys

import msgspec
import pytest

from octavo_registry import Manifest, ManifestMismatchError, PluginError, PluginHost, hookimpl

OPTION = """
@hookimpl
def register_options(options):
    options.add("size", int, 1, "how large")
"""


class ObjectPlugin:
    OCTAVO_API = "1"

    @hookimpl
    def register_sources(self, sources):
        sources.add("here", "far.away:Source")


def through_msgpack(manifest: Manifest) -> Manifest:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=Manifest)


def test_another_process_loads_exactly_what_the_manifest_says(site) -> None:
    site.install("ape", OPTION)
    site.install("bat")
    site.write("cat")
    first = PluginHost.discover(plugins=["cat"], disabled=["bat"], options={"ape": {"size": 3}})
    manifest = through_msgpack(first.manifest())
    second = PluginHost.from_manifest(manifest)
    assert second.plugins == first.plugins
    assert second.disabled == ("bat",)
    assert second.option("ape", "size") == 3
    assert second.manifest() == manifest


def test_a_manifest_is_plain_json(site) -> None:
    site.install("ape")
    document = json.loads(msgspec.json.encode(PluginHost.discover().manifest()))
    assert document == {
        "api_version": "1.0",
        "plugins": [{"name": "ape", "module": "ape", "distribution": "dist-ape", "version": "1.0"}],
        "disabled": [],
        "options": {},
    }


def test_a_plugin_object_is_refused_by_name(site) -> None:
    host = PluginHost.discover(plugins=[ObjectPlugin()])
    with pytest.raises(PluginError, match=r"'ObjectPlugin' is an object.*import path"):
        host.manifest()


def test_every_difference_is_named(site) -> None:
    for name in ("ape", "bat", "cow"):
        site.install(name)
    site.write("dog")
    manifest = PluginHost.discover(plugins=["dog"]).manifest()
    site.declare("ape", "ape", distribution="dist-ape", version="2.0")
    site.declare("bat", "bat.moved", distribution="dist-bat")
    (site.root / "dist_cow-1.dist-info" / "entry_points.txt").write_text("")
    (site.root / "dog.py").unlink()
    del sys.modules["dog"]
    site.install("eel")
    with pytest.raises(ManifestMismatchError) as error:
        PluginHost.from_manifest(manifest)
    assert str(error.value).partition(": ")[2].split("; ") == [
        "ape: version '1.0' there, '2.0' here",
        "bat: module 'bat' there, 'bat.moved' here",
        "cow: missing here (dist-cow 1.0)",
        "dog: missing here (import path)",
        "eel: installed here, not loaded there",
    ]


def test_another_api_version_is_a_difference(site) -> None:
    manifest = Manifest(api_version="1.7", plugins=())
    with pytest.raises(ManifestMismatchError, match=r"plugin API 1\.7 there, 1\.0 here"):
        PluginHost.from_manifest(manifest)
