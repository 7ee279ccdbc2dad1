"""What the conformance kit tries the decoder of images with."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from octavo.testing.media_items import picture
from octavo.testing.modality import ModalitySamples

HUGE = 60_000


def samples() -> ModalitySamples:
    """Files of all formats."""
    kinds = ("PNG", "JPEG", "WEBP", "GIF")
    encoded = {kind: _encoded(picture(0, seed), kind) for seed, kind in enumerate(kinds)}
    return ModalitySamples(
        encoded=encoded,
        given={
            "a Pillow image": picture(1, 0),
            "an array of colours": np.asarray(picture(1, 1)),
            "an array of greys": np.asarray(picture(1, 2).convert("L")),
        },
        broken={
            "the first half of a PNG": encoded["PNG"][: len(encoded["PNG"]) // 2],
            "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            "zeros": bytes(100),
        },
        bombs={
            "a PNG of 60,000 squared": _png_of(HUGE),
            "a GIF of 60,000 squared": encoded["GIF"][:6] + struct.pack("<HH", HUGE, HUGE) + b"\0;",
        },
    )


def _encoded(image: Image.Image, kind: str) -> bytes:
    file = BytesIO()
    image.save(file, kind)
    return file.getvalue()


def _png_of(side: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, body) for name, body in chunks)
