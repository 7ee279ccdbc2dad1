"""Model sources, adapter formats and resolvers: what they find and read, and what they must not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from octavo.adapters.library import check_form
from octavo.errors import OctavoError
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.samples import samples_of
from octavo_registry import (
    Adapter,
    AdapterFolders,
    AdapterFormat,
    AdapterResolver,
    FindsSettings,
    ListsAdapters,
    PluginHost,
)

NOBODYS: Final = ("octavo-kit/no-such-name", "no such name", "../no-such-name", "\0")
"""Names that nothing has."""


def check_source(host: PluginHost, name: str) -> list[Check]:
    """Ask for names that nobody has, and for the one that its ``samples`` give."""
    title = f"model source {name!r}"
    source: Any = host.sources.make(name)
    unknown = f"{title} does not know what nobody has"
    if source.uses_network:
        checks = [unclaimed(unknown, "it uses the network, which the kit does not")]
    else:
        checks = [tried(unknown, _odd_finds(source, "find"))]
        if isinstance(source, FindsSettings):
            checks.append(
                tried(f"{unknown}, nor its settings", _odd_finds(source, "find_settings"))
            )
    finds = f"{title} finds a model"
    if not host.sources.info(name).metadata["samples"]:
        return [*checks, unclaimed(finds, "samples= are not given, so that no name is known")]
    with TemporaryDirectory(prefix="octavo-kit-") as folder:
        known = samples_of(host.sources, name, Path(folder))
        return [*checks, tried(finds, _lost_model(host.sources.make(name), known))]


def _odd_finds(source: Any, method: str) -> Iterator[str]:
    if type(source.uses_network) is not bool:
        yield f"uses_network is {source.uses_network!r}, not True or False"
    for name in NOBODYS:
        try:
            found = getattr(source, method)(name, revision=None)
        except OctavoError:
            continue
        if found is not None:
            yield f"{method}({name!r}) returned {found!r}, not None"


def _lost_model(source: Any, name: str) -> Iterator[str]:
    found = source.find(name, revision=None)
    if not isinstance(found, Path):
        yield f"find({name!r}) returned {found!r}, not a Path"
    elif not (found / "config.json").is_file():
        yield f"find({name!r}) returned {found}, which has no config.json"
    if source.find(name, revision=None) != found:
        yield f"find({name!r}) returned another path the second time"


def check_adapters(host: PluginHost, name: str) -> list[Check]:
    """Try a format, or a resolver, with what its ``samples`` make and with what is not its own."""
    title = f"adapter kind {name!r}"
    made: Any = host.adapters.make(name)
    has_samples = bool(host.adapters.info(name).metadata["samples"])
    with TemporaryDirectory(prefix="octavo-kit-") as at:
        checks, folder = [], Path(at)
        known = samples_of(host.adapters, name, folder)
        if isinstance(made, AdapterFormat):
            checks.append(tried(f"{title} reads no folder of others", _odd_reads(made)))
            reads = f"{title} reads an adapter"
            if has_samples:
                checks.append(tried(reads, _lost_adapter(made, folder)))
                checks.append(tried(f"{title} refuses damaged files", _read_damage(made, folder)))
            else:
                checks.append(unclaimed(reads, "samples= are not given: nothing to read"))
        if isinstance(made, AdapterResolver):
            folders = AdapterFolders(allowed=(folder,), watched=(folder,))
            checks.append(
                tried(f"{title} does not know what nobody has", _odd_resolutions(made, folders))
            )
            finds = f"{title} finds an adapter"
            if has_samples and isinstance(known, str):
                checks.append(tried(finds, _unresolved(made, known, folders)))
            else:
                checks.append(unclaimed(finds, "samples= give no name"))
        return checks


def _odd_reads(made: AdapterFormat) -> Iterator[str]:
    with TemporaryDirectory(prefix="octavo-kit-") as at:
        empty, other, missing = (Path(at) / name for name in ("empty", "other", "missing"))
        empty.mkdir()
        other.mkdir()
        (other / "weights.of-another-kind").write_bytes(b"\x00\xff" * 64)
        (other / "notes.txt").write_text("no adapter")
        for folder in (empty, other, missing):
            try:
                found = made.read(folder)
            except OctavoError:
                continue
            if found is not None:
                kind = type(found).__name__
                yield f"read of the folder {folder.name!r} returned {kind}, not None"


def _lost_adapter(made: AdapterFormat, folder: Path) -> Iterator[str]:
    adapter = made.read(folder)
    if adapter is None:
        yield "read returned None for the folder that samples= wrote"
        return
    check_form(adapter)
    yield from _odd_matrices(adapter)
    with TemporaryDirectory(prefix="octavo-kit-") as elsewhere:
        copy = Path(elsewhere) / "copy"
        shutil.copytree(folder, copy)
        again = made.read(copy)
        if again is None or again.content_hash != adapter.content_hash:
            yield "a copy of the folder has another content_hash"
    for name, matrix in adapter.down.items():  # tensors are copies: the file may go
        if not bool((matrix == matrix).all()):
            yield f"{name} has NaN once the copy is gone"


def _odd_matrices(adapter: Adapter) -> Iterator[str]:
    if not adapter.down:
        yield "read returned an adapter without matrices"
    for name, down_RI in adapter.down.items():
        up_OR = adapter.up[name]
        shapes = f"{list(down_RI.shape)} and {list(up_OR.shape)}"
        if down_RI.ndim != 2 or up_OR.ndim != 2 or down_RI.shape[0] != up_OR.shape[1]:
            yield f"{name} has matrices of {shapes}, not [rank, in] and [out, rank]"
        elif down_RI.shape[0] > adapter.rank:
            yield f"{name} has a rank of {down_RI.shape[0]}, above that of the adapter"
        if type(adapter.scaling[name]) is not float:
            yield f"the scaling of {name} is {adapter.scaling[name]!r}, not a float"


def _read_damage(made: AdapterFormat, folder: Path) -> Iterator[str]:
    """A file that is cut in the middle, or gone, must not make another adapter of them."""
    whole = made.read(folder)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        for rest in (data[: len(data) // 2], None):
            if rest is None:
                file.unlink()
            else:
                file.write_bytes(rest)
            try:
                found = made.read(folder)
            except OctavoError:
                found = None
            finally:
                file.write_bytes(data)
            if found is not None and (whole is None or found.content_hash != whole.content_hash):
                how = "missing" if rest is None else "cut"
                yield f"with {file.name} {how}, the folder is read as another adapter"


def _odd_resolutions(made: AdapterResolver, folders: AdapterFolders) -> Iterator[str]:
    for name in NOBODYS:
        try:
            found = made.find(name, folders)
        except OctavoError:
            continue
        if found is not None:
            yield f"find({name!r}) returned {found!r}, not None"
    if isinstance(made, ListsAdapters):
        names = made.names(folders)
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            yield f"names returned {names!r}, not a list of names"


def _unresolved(made: AdapterResolver, name: str, folders: AdapterFolders) -> Iterator[str]:
    found = made.find(name, folders)
    if not isinstance(found, Path) or not found.is_dir():
        yield f"find({name!r}) returned {found!r}, not the Path of a folder"
    if isinstance(made, ListsAdapters) and name not in made.names(folders):
        yield f"names leaves out {name!r}"
