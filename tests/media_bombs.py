"""Small files that would take much, or are nothing: by name, with the modality they are sent as."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import soundfile

import media_files as media


def png(width: int, height: int, rows: bytes = b"", *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG of any claimed size, with what it has of rows."""

    def chunk(name: bytes, body: bytes) -> bytes:
        check = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, body) for name, body in chunks)


def resized(kind: str, width: int, height: int) -> bytes:
    """An encoded image whose header claims another size."""
    if kind == "PNG":
        return png(width, height)
    options = {"lossless": True} if kind == "WEBP" else {}
    data = bytearray(media.encoded(media.picture(), kind, **options))
    if kind == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    else:
        data[21:25] = struct.pack("<I", width - 1 | height - 1 << 14)
    return bytes(data)


def long_gif(num_frames: int, size: int = 8) -> bytes:
    """One frame again and again."""
    data = media.animated("GIF", 2, size)
    start = data.index(b"\x21\xf9")
    frame = data[start : data.index(b"\x21\xf9", start + 1)]
    return data[:start] + frame * num_frames + b";"


def with_table(data: bytes, name: bytes, at: int, *values: int) -> bytes:
    """An MP4 with other values in a table, ``at`` bytes behind its name."""
    start = data.index(name) + at
    packed = struct.pack(f">{len(values)}I", *values)
    return data[:start] + packed + data[start + len(packed) :]


def mp4_tables() -> dict[str, bytes]:
    """MP4 files of 2 KB that declare 2**24 samples, each in another table."""
    plain = media.video()
    sizes = with_table(plain, b"stsz", 8, 1, 2**24)
    movflags = "frag_keyframe+empty_moov+default_base_moof"
    fragments = media.video(container_options={"movflags": movflags})
    wide_size = b"\0\0\0\1stsz" + struct.pack(">QIII", 44, 0, 1, 2**24)
    at = plain.index(b"stsz") - 4
    return {
        "samples": with_table(with_table(sizes, b"stsc", 12, 1, 2**24, 1), b"stts", 12, 2**24, 1),
        "times": with_table(plain, b"stts", 12, 2**24, 1024),
        "fragments": with_table(fragments, b"trun", 4, 5, 2**24),
        "wide": plain[:at] + wide_size + plain[at + len(wide_size) :],
    }


def mp4_chunks() -> dict[str, bytes]:
    """MP4 files of 1 KB with a sound whose few chunks declare 100 million samples each."""

    def box(name: bytes, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return struct.pack(">I4s", 8 + len(body), name) + body

    def table(name: bytes, *values: int) -> bytes:
        return box(name, struct.pack(f">I{len(values)}I", 0, *values))

    matrix = (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    entry = struct.pack(">6xHQHHHHI", 1, 0, 1, 16, 0, 0, 48000 << 16)
    coding = box(b"stsd", struct.pack(">II", 0, 1), box(b"sowt", entry))
    times, sizes = table(b"stts", 1, 1, 1), table(b"stsz", 2, 1)
    lengths, chunks = table(b"stsc", 1, 1, 100_000_000, 1), table(b"stco", 150, *[40] * 150)
    origin = box(b"dinf", table(b"dref", 1, 12, int.from_bytes(b"url ", "big"), 1))
    handler = box(b"hdlr", struct.pack(">II4s13x", 0, 0, b"soun"))

    def movie(*tables: bytes) -> bytes:
        inner = box(b"minf", table(b"smhd", 0), origin, box(b"stbl", coding, *tables))
        media_box = box(b"mdia", table(b"mdhd", 0, 0, 48000, 48000, 0), handler, inner)
        head = table(b"tkhd", 0, 0, 1, 0, 48000, 0, 0, 0, 0, *matrix, 0, 0)
        start = table(b"mvhd", 0, 0, 48000, 48000, 0x10000, 0x1000000, 0, 0, *matrix, *[0] * 6, 2)
        moov = box(b"moov", start, box(b"trak", head, media_box))
        return box(b"ftyp", b"qt  \0\0\0\0qt  ") + box(b"mdat", bytes(64)) + moov

    return {
        "chunks": movie(times, lengths, sizes, chunks),
        "chunks elsewhere": movie(times, lengths, sizes, box(b"free", b"\0\0\0\0", chunks)),
    }


def scans(number: int) -> bytes:
    """A progressive JPEG with one of its scans again and again."""
    data = media.encoded(media.picture(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * number + data[-2:]


def silence(num_seconds: int) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(num_seconds * 8000, np.int16), 8000, format="FLAC")
    return buffer.getvalue()


def good() -> Iterator[tuple[str, bytes]]:
    """What loads all that decoders need."""
    yield "image", media.encoded(media.picture(), "PNG")
    yield "video", media.video("libx264")
    yield "video", media.animated("GIF", 3)
    yield "audio", media.sound("FLAC")
    yield "audio", media.m4a()


def bombs() -> Iterator[tuple[str, tuple[str, bytes]]]:
    """All that a request may be refused for by what it sends."""
    for kind, size in (("PNG", 60_000), ("JPEG", 60_000), ("GIF", 60_000), ("WEBP", 16_000)):
        yield f"{kind} of {size} squared", ("image", resized(kind, size, size))
    text = zlib.compress(b"a" * 40_000_000)
    yield "PNG with 40 MB of text", ("image", png(8, 8, b"", (b"zTXt", b"a\0\0" + text)))
    yield "PNG with 40 MB of colours", ("image", png(8, 8, b"", (b"iCCP", b"a\0\0" + text)))
    yield "PNG whose pixels are missing", ("image", png(9000, 9000))
    yield "image of 10,000 frames", ("image", long_gif(10_000))
    yield "video of 10,000 frames", ("video", long_gif(10_000))
    yield "video of 96 megapixels", ("video", resized("GIF", 12_000, 8_000))
    for name, data in mp4_tables().items():
        yield f"MP4 that declares {name}", ("video", data)
        yield f"M4A that declares {name}", ("audio", data)
    for name, data in mp4_chunks().items():
        yield f"M4A that declares {name}", ("audio", data)
    yield "JPEG of 1,000 scans", ("image", scans(1000))
    yield "hour of silence", ("audio", silence(3600))
    wav = bytearray(media.sound("WAV"))
    wav[24:28] = struct.pack("<I", 1)
    yield "sound of 1 Hz", ("audio", bytes(wav))
    for modality in ("image", "video", "audio"):
        yield f"{modality} of 0 bytes", (modality, b"")
        yield f"{modality} of text", (modality, b"text")
        yield f"{modality} of zeros", (modality, bytes(1000))
        yield f"{modality} of SVG", (modality, b"<svg xmlns='http://www.w3.org/2000/svg'/>")
        yield f"{modality} of ZIP", (modality, b"PK\x03\x04" + bytes(100))
