"""Where adapters are found, and what may not be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.adapters.library import AdapterLibrary
from octavo.errors import AdapterError, PluginError, UnknownAdapterError
from octavo_plugins.adapters.local.resolver import LocalResolver
from octavo_plugins.adapters.watched.resolver import WatchedResolver
from octavo_registry import LazyRegistry, PluginHost, hookimpl
from octavo_registry.adapters import AdapterFolders
from plugins.hub_stand_in import Repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Allowed, with an adapter in it; there is one outside, too."""
    for folder in (tmp_path / "allowed" / "mine", tmp_path / "outside"):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    return tmp_path / "allowed"


def test_paths_are_taken_below_allowed_folders_only(root: Path, tmp_path: Path) -> None:
    folders = AdapterFolders(allowed=(tmp_path / "none", root))
    for name in (str(root / "mine"), "mine", "./mine", "mine/../mine"):
        assert LocalResolver().find(name, folders) == root / "mine"
    for name in (
        str(tmp_path / "outside"), "../outside", "mine/../../outside", "mine/adapter_config.json",
        "other", "nul\0", "long" * 5000, "~nobody-at-all",
    ):  # fmt: skip
        assert LocalResolver().find(name, folders) is None
    assert LocalResolver().find(str(root / "mine"), AdapterFolders()) is None


def test_a_path_of_a_neighbour_with_the_same_beginning_is_outside(root: Path) -> None:
    neighbour = root.with_name("allowed-too")
    neighbour.mkdir()
    assert LocalResolver().find(str(neighbour), AdapterFolders(allowed=(root,))) is None


def test_links_that_lead_outside_are_not_followed(root: Path, tmp_path: Path) -> None:
    folders = AdapterFolders(allowed=(root,), watched=(root,))
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").mkdir()
    (root / "file" / "adapter_model.safetensors").symlink_to("/etc/passwd")
    (root / "loop").symlink_to(root / "loop")
    (root / "alias").symlink_to(root / "mine")
    for resolver in (LocalResolver(), WatchedResolver()):
        for name in ("folder", "file", "loop"):
            assert resolver.find(name, folders) is None
        assert resolver.find("alias", folders) == root / "mine"


def test_where_all_may_be_read_a_path_is_that_of_the_shell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("outside", str(tmp_path / "outside"), "~/outside"):
        found = LocalResolver().find(name, AdapterFolders(allowed=None))
        assert found == tmp_path / "outside"


def test_a_watched_folder_has_what_lies_in_it_now(root: Path) -> None:
    folders = AdapterFolders(watched=(root, root / "none"))
    resolver = WatchedResolver()
    assert resolver.names(folders) == ["mine"]
    (root / "later").mkdir()
    (root / ".hidden").mkdir()
    (root / "file").write_text("")
    assert resolver.names(folders) == ["later", "mine"]
    assert resolver.find("later", folders) == root / "later"
    (root / "later").rmdir()
    assert resolver.find("later", folders) is None
    for name in (".hidden", "..", ".", "", "mine/", "mine/..", str(root / "mine"), "file"):
        assert resolver.find(name, folders) is None


class Elsewhere:
    """A third party's resolver: what ``find`` gives, or raises."""

    OCTAVO_API = "1"

    @hookimpl
    def register_adapters(self, adapters: LazyRegistry[object]) -> None:
        adapters.add("elsewhere", "plugins.test_adapter_resolvers:ElsewhereResolver")
        adapters.add("early", "plugins.test_adapter_resolvers:WrongFormat")


class ElsewhereResolver:
    def find(self, name: str, folders: AdapterFolders) -> Path | None:
        if name == "broken":
            raise RuntimeError("the store is away")
        if name == "text":
            return "/elsewhere"  # type: ignore[return-value]
        return Path("/elsewhere") if name == "theirs" else None


def test_a_third_partys_resolver_is_asked(root: Path) -> None:
    library = AdapterLibrary(
        PluginHost.discover(plugins=[Elsewhere()]), AdapterFolders(allowed=(root,))
    )
    assert library.find("theirs") == Path("/elsewhere")
    assert library.find("mine") == root / "mine"
    with pytest.raises(PluginError, match=r"Elsewhere.* failed in finding adapter 'broken'"):
        library.find("broken")
    with pytest.raises(PluginError, match=r"must return a Path or None, not '/elsewhere'"):
        library.find("text")


class WrongFormat:
    """Of a folder called "wrong" it returns what is no adapter."""

    def read(self, folder: Path) -> object:
        return {"down": {}} if folder.name == "wrong" else None


def test_what_a_format_returns_must_be_an_adapter() -> None:
    library = AdapterLibrary(
        PluginHost.discover(plugins=[Elsewhere()]), AdapterFolders(allowed=None)
    )
    with pytest.raises(AdapterError, match=r"Elsewhere.* must return an Adapter or None, not \{"):
        library.read(Path("/wrong"))


def test_a_name_from_a_request_never_reaches_a_hub(hub, root: Path) -> None:
    hub.repositories["org/adapter"] = Repository({"main": {"adapter_config.json": b"{}"}})
    library = AdapterLibrary(PluginHost.discover(), AdapterFolders(allowed=(root,)))
    with pytest.raises(UnknownAdapterError, match="no adapter 'org/adapter'"):
        library.find("org/adapter")
    assert hub.requests == []


def test_an_adapter_of_a_hub_is_fetched_and_found_again_without_one(
    hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": b"weights",
        "adapter_model.bin": b"a pickle",
        "README.md": b"",
    }
    hub.repositories["org/adapter"] = Repository({"main": files})
    library = AdapterLibrary(PluginHost.discover(), AdapterFolders(allowed=None), uses_hub=True)
    folder = library.find("org/adapter")
    names = {path.name for path in folder.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    monkeypatch.setenv("OCTAVO_OFFLINE", "1")
    assert library.find("org/adapter") == folder
    with pytest.raises(UnknownAdapterError, match="no adapter 'org/other'"):
        library.find("org/other")


def test_a_folder_of_no_known_format_is_an_error_that_names_the_formats(tmp_path: Path) -> None:
    library = AdapterLibrary(PluginHost.discover(), AdapterFolders(allowed=None))
    with pytest.raises(AdapterError, match=r"no adapter of a known format; .*adapters_peft"):
        library.read(tmp_path)
