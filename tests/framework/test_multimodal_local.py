"""Data URLs, and files below a folder that nothing leads out of."""

from __future__ import annotations

import base64
import contextlib
import os
from pathlib import Path

import pytest

from octavo.config.media import MediaConfig
from octavo.multimodal.budget import MediaBudget
from octavo.multimodal.fetch import MediaFetcher
from octavo_registry import MediaError, MediaLimitError


def data_url(data: str, head: str = "data:image/png;base64") -> bytes:
    config = MediaConfig(max_media_mib=1)
    return MediaFetcher(config).fetch(f"{head},{data}", MediaBudget(config))


def test_a_data_url_is_its_bytes() -> None:
    assert data_url(base64.b64encode(b"hello").decode()) == b"hello"
    assert data_url("aGVsbG8=", "DATA:;base64") == b"hello"


@pytest.mark.parametrize(
    "data",
    [
        "/+8=\n",
        "/+\n8=",
        "/+\r\n8=\r\n",
        "/+8",
        "/+8\n",
        "%2F%2B8%3D",
        "%2f%2b8%3d%0A",
        "%2F%0D%0a+8",
    ],
)
def test_base64_may_have_lines_and_escapes_and_no_padding(data) -> None:
    assert data_url(data) == b"\xff\xef"


@pytest.mark.parametrize(
    "data",
    [
        "aGVs bG8=",
        "aGVs%20bG8=",
        "a===",
        "aGVsb",
        "aG=sbG8=",
        "aGVsbG8=aGVs",
        "äöü=",
        "a-_=",
        "aGVs%zz",
        "%41%",
        "%0",
    ],
)
def test_base64_is_otherwise_read_strictly(data) -> None:
    with pytest.raises(MediaError, match="no valid base64"):
        data_url(data)


def test_a_data_url_is_base64_and_within_the_limit() -> None:
    with pytest.raises(MediaError, match="data:TYPE;base64,DATA"):
        data_url("hello", "data:text/plain")
    with pytest.raises(MediaLimitError, match="1 MiB"):
        data_url("A" * 2_000_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of allowed media, with what leads out of it, and a secret beside it."""
    allowed = tmp_path / "allowed"
    (allowed / "inner").mkdir(parents=True)
    (allowed / "inner" / "a b.png").write_bytes(b"hello")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "allowed-too").mkdir()
    (tmp_path / "allowed-too" / "secret").write_bytes(b"secret")
    (allowed / "link").symlink_to(tmp_path / "secret")
    (allowed / "out").symlink_to(tmp_path)
    (allowed / "within").symlink_to(allowed / "inner")
    os.mkfifo(allowed / "pipe")
    return allowed


def read_local(folder: Path | None, url: str) -> bytes:
    config = MediaConfig(allowed_local_media_path=folder and str(folder))
    return MediaFetcher(config).fetch(url, MediaBudget(config))


def test_a_file_below_the_folder_is_read(folder) -> None:
    for path in ("inner/a%20b.png", "within/a%20b.png", "inner/../inner/a%20b.png"):
        assert read_local(folder, f"file://{folder}/{path}") == b"hello"
    assert read_local(folder, f"file://localhost{folder}/inner/a%20b.png") == b"hello"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "inner/../../secret",
        "%2e%2e/secret",
        "link",
        "out/secret",
        "../allowed-too/secret",
        "within/../../secret",
        "pipe",
        "inner",
        "",
        "missing",
        "a%00b",
        "x" * 5000,
    ],
)
def test_nothing_else_is_read_and_all_is_refused_in_the_same_words(folder, path) -> None:
    with pytest.raises(MediaError, match=r"^there is no such file below the folder"):
        read_local(folder, f"file://{folder}/{path}")


@pytest.mark.parametrize(
    "url", ["file://host/etc/passwd", "file:///a?b", "file:///a#b", "file://[a/b"]
)
def test_a_file_url_has_nothing_but_a_path(folder, url) -> None:
    with pytest.raises(MediaError, match=r"is written file:///|no valid URL"):
        read_local(folder, url)


def held_open(folder: Path) -> list[str]:
    """What this process has open at a folder or in it."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed meanwhile
            found.append(str(descriptor.readlink()))
    return [each for each in found if each.startswith(str(folder))]


def test_what_is_no_file_is_closed_again(folder) -> None:
    with (folder / "seen").open("wb"):
        assert held_open(folder) == [str(folder / "seen")]
    for path in ("inner", "pipe", "inner/a%20b.png"):
        with contextlib.suppress(MediaError):
            read_local(folder, f"file://{folder}/{path}")
    assert held_open(folder) == []


def test_a_link_that_is_put_in_after_the_check_is_not_followed(folder, monkeypatch) -> None:
    resolve = Path.resolve

    def swap(path: Path, strict: bool = False) -> Path:
        found = resolve(path, strict)
        if found.name == "a b.png":
            (folder / "inner").rename(folder / "gone")
            (folder / "inner").symlink_to(folder.parent)
            (folder.parent / "a b.png").write_bytes(b"secret")
        return found

    monkeypatch.setattr(Path, "resolve", swap)
    with pytest.raises(MediaError, match="no such file"):
        read_local(folder, f"file://{folder}/inner/a%20b.png")


def test_without_a_folder_no_file_is_read(folder) -> None:
    with pytest.raises(MediaError, match="--allowed-local-media-path"):
        read_local(None, f"file://{folder}/inner/a%20b.png")
