"""From what a prompt brings to items: forms, hashes, budgets, errors that name the item, time."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import media_files as media
from octavo.config.media import MediaConfig
from octavo.errors import BadRequestError, PluginError, QueueFullError
from octavo.multimodal.errors import BadMediaError, MediaTooLargeError
from octavo.multimodal.given import split_media
from octavo.multimodal.names import Names
from octavo.multimodal.reader import MediaReader
from octavo_registry import MediaError, MediaItem, MediaLimits, PluginHost


@dataclass
class Points:
    """The value of a modality that the framework has never heard of."""

    numbers: bytes


class PointDecoder:
    """A third party's decoder; bytes are numbers, a tuple of integers is one item."""

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> Points:
        CALLS.append(data)
        THREADS.update(threading.enumerate())
        limits.reserve(len(data))
        if data == b"bug":
            raise ZeroDivisionError("inside")
        if data == b"hang":
            RELEASE.wait(20)
        if data == b"slow":
            while True:
                limits.check_time()
                time.sleep(0.005)
        return Points(data)

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> Points:
        if not isinstance(given, tuple):
            raise MediaError("it is no tuple")
        return Points(bytes(given))

    def is_item(self, given: Any) -> bool:
        return isinstance(given[0], int)

    def content(self, value: Points) -> Iterator[bytes]:
        yield value.numbers


CALLS: list[bytes] = []
THREADS: set[threading.Thread] = set()  # at a call
RELEASE = threading.Event()


class PointPlugin:
    OCTAVO_API = "1"
    __name__ = "points"

    from octavo_registry import hookimpl

    @hookimpl
    def register_modalities(self, modalities: Any) -> None:
        modalities.add("points", f"{__name__}:PointDecoder")


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover(plugins=[PointPlugin()])


@pytest.fixture
def open_reader(host) -> Iterator[Callable[..., MediaReader]]:
    """Makes readers by their configuration; they are closed at the end."""
    CALLS.clear()
    THREADS.clear()
    RELEASE.clear()
    readers = []

    def make(**config: Any) -> MediaReader:
        readers.append(MediaReader(host, MediaConfig(**config)))
        return readers[-1]

    yield make
    RELEASE.set()
    for reader in readers:
        reader.close()


def read(
    reader: MediaReader, data: dict[str, Any], uuids: Any = None, **options: Any
) -> list[MediaItem]:
    return reader.read_blocking(reader.split(data, uuids), options)


PNG = media.encoded(media.picture(), "PNG")


def test_every_form_of_an_item_gives_the_same_value(open_reader, tmp_path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    forms = [PNG, bytearray(PNG), memoryview(PNG), url, path, f"file://{path}"]
    reader = open_reader(allowed_local_media_path=str(tmp_path))
    items = read(reader, {"image": [*forms, media.picture(), np.asarray(media.picture())]})
    assert all(np.array_equal(item.value, media.picture()) for item in items)
    assert len({item.content_hash for item in items[: len(forms)]}) == 1
    assert len({item.content_hash for item in items[len(forms) :]}) == 1


def test_items_are_in_the_order_given_by_modality(open_reader) -> None:
    items = read(
        open_reader(),
        {
            "image": [media.picture(9, 3), PNG],
            "video": [media.picture()] * 2,
            "audio": (media.tone(), 22050),
            "points": [(1, 2), b"\3"],
        },
    )
    assert [item.modality for item in items] == ["image", "image", "video", "audio"] + [
        "points"
    ] * 2
    assert items[0].value.size == (9, 3)
    assert items[2].value.frames.shape == (2, 23, 37, 3)
    assert [item.value.numbers for item in items[4:]] == [b"\1\2", b"\3"]


def test_several_videos_and_sounds_may_be_given_in_lists(open_reader) -> None:
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    sound = (media.tone(), 22050)
    data = {"video": [frames, media.video(), [media.picture()]], "audio": [sound, media.sound()]}
    items = read(open_reader(), data, audio={"rate": 16000}, video={"num_frames": 2})
    assert [len(item.value.frames) for item in items[:3]] == [2, 2, 1]
    assert {item.value.rate for item in items[3:]} == {16000}


def test_the_hash_is_the_content_the_modality_and_the_options(open_reader) -> None:
    reader = open_reader()
    clip = media.m4a()
    hashes = [
        item.content_hash
        for item in (
            *read(reader, {"image": [PNG, media.encoded(media.picture(38), "PNG")]}),
            *read(reader, {"points": PNG}),
            *read(reader, {"audio": clip}),
            *read(reader, {"audio": clip}, audio={"rate": 16000}),
            *read(reader, {"image": [media.picture(4, 6), media.picture(6, 4)]}),
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(len(each) == 64 for each in hashes)
    assert read(reader, {"audio": clip}, {"audio": "a"})[0].content_hash == hashes[3]


def test_what_is_kept_under_its_hash_is_not_decoded(open_reader) -> None:
    reader = open_reader()
    (first,) = read(reader, {"points": b"abc"})
    kept = {first.content_hash}
    given = reader.split({"points": [b"abc", b"d"]})
    again = reader.read_blocking(given, is_cached=kept.__contains__)
    assert [item.value and item.value.numbers for item in again] == [None, b"d"]
    assert again[0].content_hash == first.content_hash
    assert CALLS == [b"abc", b"d"]


def test_a_named_item_need_not_be_sent_again_while_it_is_kept(open_reader) -> None:
    reader = open_reader()
    (first,) = read(reader, {"points": b"abc"}, {"points": "name"})
    given = reader.split({"points": [None]}, {"points": ["name"]})
    (again,) = reader.read_blocking(given, is_cached=lambda key: key == first.content_hash)
    assert again == MediaItem(modality="points", value=None, content_hash=first.content_hash)
    with pytest.raises(BadMediaError, match="send it again"):
        reader.read_blocking(given)


def test_a_sound_with_its_rate_is_no_list_of_rows_though_it_has_the_shape_of_some() -> None:
    sound, rows = (torch.zeros(2, 900), 16_000), torch.zeros(5, 8)
    decoders = {"audio": PluginHost.discover().modalities.load("audio")()}
    for data, are_rows in ((sound, [False]), ([sound, rows], [False, True]), ([rows], [True])):
        given = split_media({"audio": data}, None, decoders, takes_rows=True)
        assert [each.is_encoded for each in given] == are_rows


def test_a_name_is_good_for_requests_of_its_salt(open_reader) -> None:
    reader = open_reader()
    always = {"is_cached": lambda key: True}
    unnamed = reader.split({"points": [None]}, {"points": ["name"]})
    hashes = {}
    for salt in ("", "mine", "yours"):
        with pytest.raises(BadMediaError, match="send it again"):
            reader.read_blocking(unnamed, salt=salt, **always)
        given = reader.split({"points": f"{salt}.".encode()}, {"points": "name"})
        hashes[salt] = reader.read_blocking(given, salt=salt)[0].content_hash
    assert len(set(hashes.values())) == 3
    for salt, expected in hashes.items():
        (again,) = reader.read_blocking(unnamed, salt=salt, **always)
        assert again.content_hash == expected
    spelt = reader.split({"points": [None]}, {"points": ["ename"]})
    with pytest.raises(BadMediaError, match="send it again"):
        reader.read_blocking(spelt, salt="min", **always)


def test_a_name_that_another_item_takes_is_never_the_first_one_s_content(open_reader) -> None:
    """Of whatever size they are: rows of one would stand where the other's are counted."""
    reader = open_reader()
    pictures = media.picture(4, 6), media.picture(60, 4), media.encoded(media.picture(8, 8), "PNG")
    kept: set[str] = set()
    for picture in pictures:
        given = reader.split({"image": picture}, {"image": "name"})
        (item,) = reader.read_blocking(given, is_cached=kept.__contains__)
        assert item.value is not None
        assert item.content_hash == read(reader, {"image": picture})[0].content_hash
        kept.add(item.content_hash)
        left_out = reader.split({"image": [None]}, {"image": ["name"]})
        (again,) = reader.read_blocking(left_out, is_cached=kept.__contains__)
        assert (again.value, again.content_hash) == (None, item.content_hash)


def test_the_names_that_were_used_last_are_kept() -> None:
    names = Names(2)
    for name in "ab":
        names.put(name, name.upper())
    assert names.get("a") == "A"
    names.put("c", "C")
    assert [names.get(name) for name in "abc"] == ["A", None, "C"]


def test_a_pillow_image_that_is_cut_is_a_bad_request_even_by_name(open_reader) -> None:
    cut = Image.open(io.BytesIO(media.encoded(media.picture(300, 300), "JPEG")[:2000]))
    with pytest.raises(BadMediaError, match="image: this image cannot be decoded"):
        read(open_reader(), {"image": cut}, {"image": "name"})


@pytest.mark.parametrize(
    ("data", "uuids", "match"),
    [
        ({"image": [PNG, PNG]}, {"image": ["a"]}, "1 of image for 2 items"),
        ({"image": PNG}, {"image": ""}, "image: uuid=''"),
        ({"image": [PNG, PNG]}, {"image": [None, 7]}, "image 2: uuid=7"),
        ({"image": PNG}, {"image": "a\ud800"}, "image: uuid="),
        ({"image": PNG}, {"video": "a"}, "names 'video'"),
        ({"image": None}, None, "None is no item"),
        ({"smell": PNG}, None, "no plugin decodes 'smell'; known: audio, image, points, video"),
        ({"image": {"url": "x"}}, None, "image: it is a dict"),
        ({"image": [PNG, b"<svg/>"]}, None, "image 2: it is SVG"),
        ({"image": b""}, None, "image: it has 0 bytes"),
        ({"image": "data:image/png;base64,"}, None, "image: it has 0 bytes"),
        ({"image": "photo.png"}, None, "a URL begins with one of: data, http, https, file"),
        ({"image": "http://a.example/"}, None, "image: media may not come from a.example"),
        ({"points": [[1, 2], "x"]}, None, "points 2: a URL begins"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request_that_names_the_item(
    open_reader, data, uuids, match
) -> None:
    with pytest.raises(BadMediaError, match=match) as caught:
        read(open_reader(), data, uuids)
    assert isinstance(caught.value, BadRequestError)
    assert caught.value.param in ("multi_modal_data", "multi_modal_uuids")


def test_a_missing_path_is_named(open_reader, tmp_path) -> None:
    with pytest.raises(BadMediaError, match=r"absent.png' cannot be read: No such file"):
        read(open_reader(), {"image": tmp_path / "absent.png"})


def test_a_decoder_that_fails_is_named_and_no_other_item_is_hurt(open_reader) -> None:
    reader = open_reader()
    with pytest.raises(PluginError, match="decoder of points: ZeroDivisionError"):
        read(reader, {"points": b"bug"})
    assert read(reader, {"points": b"a"})[0].value == Points(b"a")


@pytest.mark.parametrize(
    ("config", "data", "match"),
    [
        ({"max_media_items": 2}, {"points": [b"a"] * 3}, "points 3: at most 2 items"),
        ({"limit_mm_per_prompt": {"points": 1}}, {"points": [b"a"] * 2}, "at most 1 of points"),
        ({"limit_mm_per_prompt": {"points": {"count": 0}}}, {"points": b"a"}, "at most 0"),
        ({"max_media_mib": 1}, {"points": [b"a" * 600_000] * 2}, "1 MiB in all"),
        ({"max_decoded_media_mib": 1}, {"points": [b"a" * 600_000] * 2}, "1 MiB in all when"),
        ({"max_image_megapixels": 0.0008}, {"image": PNG}, "37 x 23"),
        ({"limit_mm_per_prompt": {"image": {"width": 28, "height": 30}}}, {"image": PNG}, "840"),
        ({"max_video_frames": 3}, {"video": media.video()}, "30 frames; at most 3"),
        ({"limit_mm_per_prompt": {"video": {"num_frames": 3}}}, {"video": media.video()}, "most 3"),
        ({"max_audio_seconds": 0.4}, {"audio": media.sound()}, "0.5 seconds; at most 0.4"),
        ({"limit_mm_per_prompt": {"audio": {"seconds": 0.4}}}, {"audio": media.sound()}, "0.4"),
    ],
)
def test_above_a_limit_a_request_is_too_large(open_reader, config, data, match) -> None:
    with pytest.raises(MediaTooLargeError, match=match):
        read(open_reader(**config), data)


def test_width_and_height_bound_the_area_alone(open_reader) -> None:
    reader = open_reader(limit_mm_per_prompt={"image": {"width": 23, "height": 37}})
    assert read(reader, {"image": PNG})[0].value.size == (37, 23)


@pytest.mark.parametrize("data", [b"slow", b"hang"])
def test_decoding_ends_with_its_time_whether_or_not_the_decoder_looks(open_reader, data) -> None:
    began = time.monotonic()
    with pytest.raises(MediaTooLargeError, match="points: decoding takes too long"):
        read(open_reader(media_decode_timeout=0.1), {"points": data})
    assert time.monotonic() - began < 10


def test_decoders_that_hang_hold_their_thread_and_the_next_request_is_told_so(
    open_reader, tmp_path
) -> None:
    reader = open_reader(media_decode_timeout=0.1, media_fetch_timeout=0.1, media_threads=1)
    with pytest.raises(MediaTooLargeError):
        read(reader, {"points": b"hang"})
    path = tmp_path / "points"
    path.write_bytes(b"a")
    for given in ((1, 2), path):
        with pytest.raises(QueueFullError, match="try again later"):
            read(reader, {"points": given})
    RELEASE.set()
    assert read(open_reader(), {"points": (1, 2)})[0].value == Points(b"\1\2")


def test_a_caller_without_an_event_loop_waits_in_its_own_thread(open_reader) -> None:
    reader = open_reader()
    before = set(threading.enumerate())
    read(reader, {"points": [(1,), b"a"]})
    names = {thread.name.rpartition("_")[0] for thread in THREADS - before}
    assert names == {"decoding of media"}


def test_the_event_loop_goes_on_while_media_is_decoded(open_reader) -> None:
    reader = open_reader(media_decode_timeout=0.3)

    async def both() -> int:
        reading = asyncio.create_task(reader.read(reader.split({"points": b"slow"})))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        with pytest.raises(MediaTooLargeError):
            await reading
        return turns

    assert asyncio.run(both()) > 20


def test_a_request_that_is_cancelled_drops_what_has_not_begun(open_reader) -> None:
    reader = open_reader(media_threads=1)

    async def leave() -> None:
        given = reader.split({"points": [(1,), b"hang", b"never"]})
        reading = asyncio.create_task(reader.read(given))
        while b"hang" not in CALLS:
            await asyncio.sleep(0.001)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(leave())
    RELEASE.set()
    assert read(reader, {"points": b"after"})[0].value == Points(b"after")
    assert CALLS == [b"hang", b"after"]


def test_nothing_that_decodes_is_imported_before_there_is_media() -> None:
    code = """
import sys
import octavo.multimodal
from octavo_registry import PluginHost
assert {"audio", "image", "video"} <= set(PluginHost.discover().modalities.names())
found = {"PIL", "av", "numba", "numpy", "soundfile", "soxr", "torch"} & set(sys.modules)
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
