"""Encoded images, Pillow images and arrays, each as an upright RGB image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import Image

from octavo_plugins.modalities.formats import check_format, decoding, read_options
from octavo_plugins.modalities.gif import count_gif_frames
from octavo_registry.modalities import MediaError, MediaLimitError, MediaLimits

FORMATS: Final = ("PNG", "JPEG", "WebP", "GIF")
PIXEL_BYTES: Final = 4  # Pillow stores RGB in four bytes
PROGRESSIVE_BYTES: Final = 10
"""A pixel's, of a JPEG whose coefficients are all kept until the last scan, two bytes each."""
MAX_SCANS: Final = 100
"""Usual are 10. Each goes over the whole image, however few bytes it has, and none looks at the
clock."""
SCAN: Final = b"\xff\xda"
BLOCK_BYTES: Final = 1 << 30
"""What Pillow allocates at once; no image takes more than it needs. Its own 16 MiB come from
malloc's heaps once some were freed, and stay there: a server had 7.7 GB after 184 PNGs of 65 bytes
that claimed 81 megapixels. What is above 32 MiB comes from the system and goes back to it."""
ORIENTATION: Final = 0x0112
UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How a picture is turned upright, by the value of EXIF's orientation."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Images are decoded in one way."""


class ImageDecoder:
    """Returns a ``PIL.Image.Image`` of mode RGB; with one, Pillow allocates in larger blocks."""

    def __init__(self) -> None:
        Image.core.set_block_size(BLOCK_BYTES)  # type: ignore[attr-defined]  # not in its stubs

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> Image.Image:
        """Decode the first frame of a PNG, JPEG, WebP or GIF."""
        read_options(NoOptions, options)
        kind = check_format(data, FORMATS)
        if kind == "GIF":
            limits.check_animation(count_gif_frames(data, most=limits.max_animation_frames))
        if kind == "WebP":  # opening it makes room for the whole canvas
            _check_webp(data, limits)
        if kind == "JPEG":
            _check_scans(data)
        with decoding(kind):
            image = _opened(data, kind)
            limits.check_pixels(*image.size)
            if kind in ("PNG", "WebP"):
                limits.check_animation(getattr(image, "n_frames", 1))
            limits.check_time()
            bytes_each = PROGRESSIVE_BYTES if "progressive" in image.info else PIXEL_BYTES
            limits.reserve(image.width * image.height * bytes_each)
            image.load()
            limits.check_pixels(*image.size)
            upright = _upright(image)
            limits.check_time()
            # One that may have several frames holds the file, to read the next.
            keeps_file = upright is image and (
                kind == "WebP" or getattr(image, "is_animated", False)
            )
            return image.copy() if keeps_file else upright

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> Image.Image:
        """Convert a Pillow image, or uint8 pixels [height, width] or [height, width, 3 or 4]."""
        read_options(NoOptions, options)
        if isinstance(given, Image.Image):
            if not given.width * given.height:
                raise MediaError(f"it has no pixels: it is {given.width} x {given.height}")
            limits.check_pixels(*given.size)
            limits.reserve(given.width * given.height * PIXEL_BYTES)
            with decoding("image"):
                given.load()  # one that was opened has read no more than its header
                return _upright(given)
        pixels = _pixels(given)
        limits.check_pixels(pixels.shape[1], pixels.shape[0])
        limits.reserve(pixels.shape[0] * pixels.shape[1] * PIXEL_BYTES)
        return _rgb(Image.fromarray(pixels))

    def is_item(self, given: Sequence[Any]) -> bool:
        """No list is an image."""
        return False

    def content(self, value: Image.Image) -> Iterator[bytes]:
        """Size and pixels."""
        yield f"{value.mode} {value.width} x {value.height}:".encode()
        yield value.tobytes()


def _pixels(given: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not hasattr(given, "__array__"):
        raise MediaError(
            f"it is a {type(given).__name__}; give a Pillow image, an array of pixels, bytes, a "
            "pathlib.Path or a URL"
        )
    pixels = np.asarray(given)
    channels_fit = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if not channels_fit or 0 in pixels.shape:
        raise MediaError(
            f"it has the shape {list(pixels.shape)}; pixels are [height, width] or "
            "[height, width, 3 or 4]"
        )
    if pixels.dtype != np.uint8:
        raise MediaError(f"it has pixels of type {pixels.dtype}; give uint8 from 0 to 255")
    return pixels


def _rgb(image: Image.Image) -> Image.Image:
    """The image in RGB: what is transparent on white, 16 bits as their upper 8."""
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode in ("I", "F"):
        raise MediaError(
            f"it has pixels of mode {image.mode!r}, whose range is not known; convert it to 8 bits"
        )
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        seen = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(seen, mask=seen.getchannel("A"))
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Pillow's own conversion clips all above 255 to white; of 16-bit colour it takes the same."""
    grey = np.asarray(image)
    levels = (grey >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if transparent is not None:
        levels[grey == transparent] = 255
    return Image.fromarray(levels).convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    """The image in RGB, turned as its EXIF data says."""
    rgb, turned = _rgb(image), UPRIGHT.get(_orientation(image))
    return rgb if turned is None else rgb.transpose(turned)


def _orientation(image: Image.Image) -> Any:
    """EXIF's value; None also where its block is damaged, as the pixels are whole all the same."""
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:
        return None


def _opened(data: bytes, kind: str) -> Image.Image:
    """The image of which only the header is read."""
    try:
        return Image.open(BytesIO(data), formats=[kind.upper()])
    except Image.DecompressionBombError as error:
        raise MediaLimitError(f"it is too large: {error}") from error


def _check_scans(data: bytes) -> None:
    num_scans = data.count(SCAN)
    if num_scans > MAX_SCANS:
        raise MediaLimitError(f"it has {num_scans:,} scans; at most {MAX_SCANS}")


def _check_webp(data: bytes, limits: MediaLimits) -> None:
    """Check the size in the header of any of the three kinds of WebP."""
    kind, header = data[12:16], data[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        size = (int.from_bytes(header[at : at + 3], "little") + 1 for at in (4, 7))
    elif kind == b"VP8L":
        bits = int.from_bytes(header[1:5], "little")
        size = ((bits >> shift & 0x3FFF) + 1 for shift in (0, 14))
    else:
        size = (int.from_bytes(header[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    limits.check_pixels(*size)
