"""The tables of an MP4: that FFmpeg's index of what they declare stays small."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from octavo_registry.modalities import MediaError, MediaLimitError

MAX_SAMPLES: Final = 500_000
"""Frames and packets. FFmpeg makes an index of all that are declared before it reads one: a file
of 2 KB that declares 20 million takes 13 seconds and 700 MB to open."""
SAMPLE_TABLES: Final = (b"stsz", b"stz2", b"stts", b"ctts", b"trun")
CHUNK_TABLES: Final = (b"stsc", b"stco", b"co64")
INNER: Final = (b"mdia", b"minf", b"stbl")
"""Boxes of boxes, on the way from a track to its tables."""
SOUND: Final = {b"soun", b"url ", b"alis"}
"""Handlers of a track of sound: its own, and those of where its data are."""
PACKET: Final = 160
"""The fewest samples of uncompressed sound that FFmpeg makes a packet of."""

Tables = dict[bytes, list[int]]
"""Where the names of boxes are."""


def check_tables(data: bytes) -> None:
    """Refuse an MP4 whose tables declare more samples than a file of any use has.

    They are looked for by name and not through the boxes around them, since FFmpeg understands
    more layouts than one would think of. Boxes are followed only where that lets more pass.
    """
    found: Tables = {name: [] for name in (*SAMPLE_TABLES, *CHUNK_TABLES)}
    tracks: list[Tables] = []
    in_chunks: set[int] = set()
    for start, end in _outside_media(data):
        if data.find(b"cmvd", start, end) != -1:
            raise MediaError("it is an MP4 with a compressed header; write it anew")
        for name, places in found.items():
            places += _named(data, name, start, end)
        if data[start + 4 : start + 8] != b"moov":
            continue
        for name, at, track_end in _boxes(data, start + 8, end):
            if name == b"trak":
                tracks.append(_tables(data, at + 4, track_end))
                in_chunks.update(_taken_in_chunks(data, tracks[-1], at + 4, track_end))
    for name in SAMPLE_TABLES:
        num_samples = 0
        for at in found[name]:
            num_samples += 0 if at in in_chunks else _declared(data, name, at)
            _check(num_samples)
    _check_chunks(data, found, tracks)


def _check(num_samples: int) -> None:
    if num_samples > MAX_SAMPLES:
        raise MediaLimitError(f"it declares {num_samples:,} samples; at most {MAX_SAMPLES:,}")


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


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The names of boxes in a row, where these stand, and where the boxes end."""
    while start + 8 <= end:
        size = int.from_bytes(data[start : start + 4], "big")
        if not 8 <= size <= end - start:
            return
        yield data[start + 4 : start + 8], start + 4, start + size
        start += size


def _tables(data: bytes, start: int, end: int, path: tuple[bytes, ...] = INNER) -> Tables:
    """The boxes of a track, without those that hold them."""
    tables: Tables = {}
    for name, at, box_end in _boxes(data, start, end):
        inner = {name: [at]}
        if path and name == path[0]:
            inner = _tables(data, at + 4, box_end, path[1:])
        for each, places in inner.items():
            tables.setdefault(each, []).extend(places)
    return tables


def _named(data: bytes, name: bytes, start: int, end: int) -> Iterator[int]:
    """Wherever a name stands."""
    at = data.find(name, start, end)
    while at != -1:
        yield at
        at = data.find(name, at + 4, end)


def _taken_in_chunks(data: bytes, track: Tables, start: int, end: int) -> list[int]:
    """The tables of a track that declare nothing to FFmpeg, which goes by its chunks.

    That is so of a track of sound whose samples all last 1: uncompressed sound, of which a second
    has 48,000. One in which there is any doubt is taken for another.
    """
    for name in (b"hdlr", b"stts", b"stsz", b"ctts"):
        if data.count(name, start, end) != len(track.get(name, [])):
            return []
    handlers = {data[at + 12 : at + 16] for at in track.get(b"hdlr", [])}
    times, sizes = track.get(b"stts", []), track.get(b"stsz", [])
    if len(times) != 1 or len(sizes) != 1 or b"ctts" in track:
        return []
    one_run = _number(data, times[0] + 8) == 1 and _number(data, times[0] + 16) == 1
    one_size = _number(data, sizes[0] + 8) > 0
    is_sound = b"soun" in handlers and handlers <= SOUND
    return [times[0], sizes[0]] if one_run and one_size and is_sound else []


def _check_chunks(data: bytes, found: Tables, tracks: list[Tables]) -> None:
    """Bound the packets of uncompressed sound; of other tracks they are no more than the samples.

    Where a table stands elsewhere than in a track, all are taken together.
    """
    if any(
        len(found[name]) != sum(len(track.get(name, [])) for track in tracks)
        for name in CHUNK_TABLES
    ):
        tracks = [found]
    num_packets = num_runs = 0
    for track in tracks:
        most = 0
        for at in track.get(b"stsc", []):
            at += 12 if _is_wide(data, at) else 4
            num_runs += _number(data, at + 4)
            _check(num_runs)
            runs = data[at + 8 : at + 8 + 12 * _number(data, at + 4)]
            whole = struct.iter_unpack(">III", runs[: len(runs) // 12 * 12])
            most = max(most, *(length for _, length, _ in whole), 0)
        for name in (b"stco", b"co64"):
            for at in track.get(name, []):
                num_chunks = _number(data, at + (16 if _is_wide(data, at) else 8))
                num_packets += num_chunks * -(-most // PACKET)
        _check(num_packets)


def _declared(data: bytes, name: bytes, at: int) -> int:
    """How many samples the table whose name stands there declares; a run has one at least."""
    at += 12 if _is_wide(data, at) else 4
    if name in (b"stsz", b"stz2"):
        return _number(data, at + 8)
    count = _number(data, at + 4)
    if name == b"trun" or count > MAX_SAMPLES:
        return count
    runs = data[at + 8 : at + 8 + 8 * count]
    num_samples: int = sum(
        length for length, _ in struct.iter_unpack(">II", runs[: len(runs) // 8 * 8])
    )
    return max(count, num_samples)


def _is_wide(data: bytes, at: int) -> bool:
    """Whether a size of 64 bits follows the name."""
    return data[at - 4 : at] == b"\0\0\0\1"


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")
