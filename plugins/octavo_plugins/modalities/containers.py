"""FFmpeg's demuxers, kept to the formats that are let in, and files that are whole."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Final

from octavo_plugins.modalities.formats import decoding
from octavo_registry.modalities import MediaError, MediaLimitError, MediaLimits

if TYPE_CHECKING:
    from av.container import InputContainer

DEMUXERS: Final = {"MP4": "mov", "Matroska": "matroska", "GIF": "gif"}
"""FFmpeg's name by ours. It is never left to FFmpeg to guess: some of its formats are lists of
other files and addresses."""
MAX_SAMPLES: Final = 500_000
"""Frames and packets of an MP4. FFmpeg makes an index of all that are declared before it reads
one: a file of 2 KB that declares 20 million takes 13 seconds and 700 MB to open."""
EBML_SEGMENT: Final = b"\x18\x53\x80\x67"


@contextmanager
def open_container(data: bytes, kind: str, limits: MediaLimits) -> Iterator[InputContainer]:
    """Open a file of a kind in DEMUXERS; what libraries raise within becomes a MediaError."""
    import av

    if kind == "MP4":
        _check_tables(data)
    if kind == "Matroska":
        _check_segment(data)
    with (
        decoding(kind),
        av.open(
            BytesIO(data),
            "r",
            format=DEMUXERS[kind],
            options={"max_pixels": str(limits.max_pixels)},  # of what is decoded to probe
            container_options={"protocol_whitelist": "none"},
        ) as container,
    ):
        yield container


def _check_tables(data: bytes) -> None:
    """Refuse an MP4 whose tables declare more samples than a file of any use has.

    They are looked for by name and not through the boxes around them, since FFmpeg understands
    more layouts than one would think of.
    """
    counts = dict.fromkeys((b"stsz", b"stz2", b"stts", b"ctts", b"trun"), 0)
    for start, end in _outside_media(data):
        if data.find(b"cmvd", start, end) != -1:
            raise MediaError("it is an MP4 with a compressed header; write it anew")
        for name in counts:
            at = data.find(name, start, end)
            while at != -1:
                counts[name] += _declared(data, name, at)
                at = data.find(name, at + 4, end)
        if max(counts.values()) > MAX_SAMPLES:
            raise MediaLimitError(
                f"it declares {max(counts.values()):,} samples; at most {MAX_SAMPLES:,}"
            )


def _outside_media(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the file's outermost boxes are, but for those of coded media."""
    start = 0
    while start + 8 <= len(data):
        size, header = int.from_bytes(data[start : start + 4], "big"), 8
        if size == 1:
            size, header = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        if size == 0:  # up to the end
            size = len(data) - start
        name, left = data[start + 4 : start + 8], len(data) - start
        if not header <= size <= left:
            if name in (b"mdat", b"moof", b"moov"):
                raise MediaError(f"it is cut: {left:,} of {size:,} bytes are there")
            size = left  # something that is no box; FFmpeg may look for more in it
        yield start, start + header if name == b"mdat" else start + size
        start += size


def _declared(data: bytes, name: bytes, at: int) -> int:
    """How many samples the table whose name stands there declares."""
    at += 12 if data[at - 4 : at] == b"\0\0\0\1" else 4  # behind a size of 64 bits
    if name in (b"stsz", b"stz2"):
        return int.from_bytes(data[at + 8 : at + 12], "big")
    count = int.from_bytes(data[at + 4 : at + 8], "big")
    if name == b"trun" or count > MAX_SAMPLES:
        return count
    runs = data[at + 8 : at + 8 + 8 * count]
    return sum(length for length, _ in struct.iter_unpack(">II", runs[: len(runs) // 8 * 8]))


def _check_segment(data: bytes) -> None:
    """Refuse a Matroska shorter than it says; FFmpeg reads one as far as it goes."""
    try:
        size, start = _ebml_size(data, 4)
        start += size or 0
        if data[start : start + 4] != EBML_SEGMENT:
            raise MediaError("it is a damaged Matroska")
        size, start = _ebml_size(data, start + 4)
    except IndexError as error:
        raise MediaError("it is cut: a Matroska without content") from error
    if size is not None and start + size > len(data):
        raise MediaError(f"it is cut: {len(data) - start:,} of {size:,} bytes are there")


def _ebml_size(data: bytes, at: int) -> tuple[int | None, int]:
    """An element's size, None for one that is open, and where its content begins."""
    num_bytes = 9 - data[at].bit_length()
    bits = 7 * num_bytes
    size = int.from_bytes(data[at : at + num_bytes], "big") & (1 << bits) - 1
    return None if size == (1 << bits) - 1 else size, at + num_bytes
