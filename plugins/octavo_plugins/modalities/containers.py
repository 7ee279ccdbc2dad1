"""FFmpeg's demuxers, kept to the formats that are let in, and files that are whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from octavo_plugins.modalities.formats import decoding
from octavo_plugins.modalities.mp4 import check_tables
from octavo_registry.modalities import MediaError, MediaLimits

if TYPE_CHECKING:
    from av.container import InputContainer

DEMUXERS: Final = {"MP4": "mov", "Matroska": "matroska", "GIF": "gif"}
"""FFmpeg's name by ours. It is never left to FFmpeg to guess: some of its formats are lists of
other files and addresses."""
PADDED_PIXELS: Final = 1 << 21
"""FFmpeg counts a frame with its sides rounded up to 64, and so at most so many pixels more, of
sides up to 16,384."""
EBML_SEGMENT: Final = b"\x18\x53\x80\x67"


@contextmanager
def open_container(
    data: bytes, kind: str, codecs: Collection[str], limits: MediaLimits
) -> Iterator[InputContainer]:
    """Open a file of a kind in DEMUXERS; what libraries raise within becomes a MediaError.

    To see what is in it, FFmpeg decodes with no codec but those named.
    """
    import av

    if kind == "MP4":
        check_tables(data)
    if kind == "Matroska":
        _check_segment(data)
    with (
        decoding(kind),
        av.open(
            BytesIO(data),
            "r",
            format=DEMUXERS[kind],
            options=decoder_options(limits),  # of what is decoded to probe
            container_options={
                "protocol_whitelist": "none",
                "codec_whitelist": ",".join(sorted(codecs)),
            },
        ) as container,
    ):
        yield container


def decoder_options(limits: MediaLimits) -> dict[str, str]:
    """What keeps a decoder from frames far above the limit; who takes them looks closer."""
    return {"max_pixels": str(limits.max_pixels + PADDED_PIXELS)}


def first_stream(streams: Sequence[Any], what: str, codecs: Collection[str]) -> Any:
    """The first of a container's streams of one kind, whose codec must be one of these."""
    if not streams:
        raise MediaError(f"it has no {what} in it")
    context = streams[0].codec_context
    if context is None or context.name not in codecs:
        found = context.name if context else "an unknown one"
        raise MediaError(f"it has {what} coded as {found}; use {', '.join(sorted(codecs))}")
    return streams[0]


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
