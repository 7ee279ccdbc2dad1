"""What bytes are, by their beginning; and errors for what an item is not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from octavo_registry.faults import one_line
from octavo_registry.modalities import MediaError, MediaLimitError

T = TypeVar("T")

_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"\x1aE\xdf\xa3", "Matroska"),
    (b"fLaC", "FLAC"),
    (b"OggS", "Ogg"),
    (b"ID3", "MP3"),
    (b"RF64", "WAV"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"%PDF", "PDF"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
)
_RIFF: Final = {b"WAVE": "WAV", b"WEBP": "WebP", b"AVI ": "AVI"}
_STILL_BRANDS: Final = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")


def format_of(data: bytes) -> str:
    """Return the name of the format that the data begins as, or "an unknown format"."""
    for beginning, name in _BEGINNINGS:
        if data.startswith(beginning):
            return name
    if data.startswith(b"RIFF") and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return "HEIF or AVIF" if data[8:12] in _STILL_BRANDS else "MP4"
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # a frame of layer III
        return "MP3"
    text = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg", b"<!--")):
        return "SVG or XML"
    return "HTML" if text.startswith((b"<html", b"<!doctype html")) else "an unknown format"


def check_format(data: bytes, wanted: Collection[str]) -> str:
    """Return the data's format; a MediaError unless it is one of those."""
    found = format_of(data)
    if found not in wanted:
        raise MediaError(f"it is {found}; send one of: {', '.join(wanted)}")
    return found


@contextmanager
def decoding(kind: str) -> Iterator[None]:
    """Make a MediaError of whatever a decoding library raises within.

    On damaged data they raise all kinds: OSError, SyntaxError, struct.error, ZeroDivisionError.
    """
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        raise MediaLimitError("decoding needs more memory than there is") from error
    except Exception as error:
        raise MediaError(f"this {kind} cannot be decoded: {one_line(error)}") from error


def read_options(kind: type[T], options: Mapping[str, Any]) -> T:
    """Make the dataclass of a decoder's options; a MediaError names one that it does not know."""
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    for name in options:
        if name not in known:
            raise MediaError(f"it has no option {name!r}; known: {', '.join(known) or 'none'}")
    return kind(**options)
