"""Images: equal to Pillow's, upright and in RGB; what is refused before it is decoded."""

from __future__ import annotations

import io
import random
import time

import numpy as np
import pytest
from PIL import Image, ImageOps

import media_bombs
import media_files as media
from octavo_plugins.modalities.image.decoder import ImageDecoder
from octavo_registry import MediaError, MediaLimitError

DECODER = ImageDecoder()


def decode(data: bytes, **limits: object) -> Image.Image:
    return DECODER.decode(data, media.limits(**limits), {})


def convert(given: object, **limits: object) -> Image.Image:
    return DECODER.convert(given, media.limits(**limits), {})


def same(image: Image.Image, expected: Image.Image) -> bool:
    return image.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(expected))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_is_what_pillow_decodes(kind) -> None:
    data = media.encoded(media.picture(), kind)
    assert same(decode(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB", "HSV"])
def test_every_colour_mode_becomes_rgb(mode) -> None:
    image = media.picture(mode=mode)
    assert same(convert(image), image.convert("RGB"))


def test_a_jpeg_for_print_is_decoded_as_pillow_does() -> None:
    data = media.encoded(media.picture(mode="CMYK"), "JPEG")
    assert same(decode(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_is_on_white(mode) -> None:
    image = media.picture(mode="RGB").convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image = image.convert(mode)
    white = Image.new("RGBA", image.size, "white")
    expected = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    difference = np.asarray(convert(image)).astype(int) - np.asarray(expected)
    assert abs(difference).max() <= 1
    assert min(convert(image).getpixel((0, 0))) >= 250


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_of_a_png_is_white(mode) -> None:
    image = Image.new(mode, (2, 1), 0)
    image.putpixel((1, 0), 3 if mode != "RGB" else (9, 9, 9))
    data = media.encoded(image, "PNG", transparency=0 if mode != "RGB" else (0, 0, 0))
    decoded = decode(data)
    assert decoded.getpixel((0, 0)) == (255, 255, 255)
    assert decoded.getpixel((1, 0)) == image.convert("RGB").getpixel((1, 0))


def test_16_bits_are_their_upper_8() -> None:
    levels = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    data = media.encoded(Image.fromarray(levels), "PNG")
    assert np.array_equal(np.asarray(decode(data))[..., 1], levels >> 8)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_turned_as_its_exif_data_says(orientation, kind) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = media.encoded(media.picture(), kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert same(decode(data), expected)
    assert same(convert(Image.open(io.BytesIO(data))), expected)


def test_a_transparent_image_is_turned_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = media.encoded(media.picture().convert("RGBA"), "PNG", exif=exif)
    assert decode(data).size == (23, 37)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken_and_the_file_let_go(kind) -> None:
    data = media.animated(kind, 4)
    decoded = decode(data)
    assert same(decoded, Image.open(io.BytesIO(data)).convert("RGB"))
    assert not hasattr(decoded, "_fp")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_of_too_many_frames_is_refused(kind) -> None:
    assert decode(media.animated(kind, 9), max_animation_frames=9, max_frames=0)
    with pytest.raises(MediaLimitError, match=r"more than 8 frames"):
        decode(media.animated(kind, 9), max_animation_frames=8)


def test_an_animation_of_10000_frames_is_refused_at_once() -> None:
    data = media_bombs.long_gif(10_000)
    began = time.process_time()
    with pytest.raises(MediaLimitError, match="more than 512 frames"):
        decode(data)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("kind", "size"),
    [("PNG", 60_000), ("PNG", 12_000), ("JPEG", 60_000), ("GIF", 60_000), ("WEBP", 16_000)],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_by_its_header(kind, size) -> None:
    with pytest.raises(MediaLimitError, match="pixels"):
        decode(media_bombs.resized(kind, size, size))


def test_a_webp_whose_canvas_is_a_bomb_is_refused_before_it_is_opened(monkeypatch) -> None:
    data = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + b"\xff\xff\x0f" * 2
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(MediaLimitError, match="1048576 x 1048576"):
        decode(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_cut_image_is_refused(kind) -> None:
    data = media.encoded(media.picture(200, 100), kind)
    for length in (20, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(MediaError):
            decode(data[:length])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b'<?xml version="1.0"?><svg/>', "SVG"),
        (b"%PDF-1.7", "PDF"),
        (b"<!DOCTYPE html><p>", "HTML"),
        (b"PK\x03\x04", "ZIP"),
        (b"BM\0\0", "BMP"),
        (b"\0\0\0\x20ftypavif", "AVIF"),
        (media.sound("WAV"), "WAV"),
        (b"words", "an unknown format"),
    ],
)
def test_what_is_no_image_is_refused_by_what_it_is(data, name) -> None:
    with pytest.raises(MediaError, match=rf"{name}.*; send one of: PNG, JPEG, WebP, GIF"):
        decode(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_damage_anywhere_is_an_image_or_a_refusal(kind) -> None:
    rng = random.Random(0)
    whole = media.encoded(media.picture(), kind)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert decode(bytes(data), max_pixels=100_000).mode == "RGB"
        except MediaError:
            refused += 1
    assert refused > 3


def test_pixels_are_taken_as_they_are() -> None:
    pixels = np.asarray(media.picture())
    assert same(convert(pixels), media.picture())
    assert same(convert(pixels[..., 0]), Image.fromarray(pixels[..., 0]).convert("RGB"))
    assert convert(np.full((2, 2, 4), 0, np.uint8)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"shape \[3, 8, 8\]"),
        (np.zeros((8, 8, 3), np.float32), "float32"),
        (np.zeros((0, 8, 3), np.uint8), "shape"),
        (Image.new("F", (2, 2)), "mode 'F'"),
        ({"image": 1}, "a dict"),
        (object(), "a object"),
    ],
)
def test_what_has_no_clear_pixels_is_refused(given, match) -> None:
    with pytest.raises(MediaError, match=match):
        convert(given)


def test_limits_hold_for_what_is_decoded_already() -> None:
    for given in (media.picture(40, 30), np.zeros((30, 40, 3), np.uint8)):
        with pytest.raises(MediaLimitError, match="40 x 30"):
            convert(given, max_pixels=1199)


def test_memory_is_reserved_before_it_is_taken(monkeypatch) -> None:
    def refuse(num_bytes: int) -> None:
        raise MediaLimitError(f"{num_bytes} asked for")

    data = media.encoded(media.picture(), "PNG")
    monkeypatch.setattr(Image.Image, "load", None)
    with pytest.raises(MediaLimitError, match=f"{37 * 23 * 4} asked for"):
        decode(data, reserve=refuse)


def test_a_progressive_jpeg_reserves_its_coefficients_too() -> None:
    asked: list[int] = []
    for progressive in (False, True):
        decode(
            media.encoded(media.picture(), "JPEG", progressive=progressive), reserve=asked.append
        )
    assert asked == [37 * 23 * 4, 37 * 23 * 10]


def test_a_jpeg_of_many_scans_is_refused_before_any_is_read(monkeypatch) -> None:
    usual = media_bombs.scans(0)
    assert same(decode(usual), Image.open(io.BytesIO(usual)).convert("RGB"))
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(MediaLimitError, match="scans; at most 100"):
        decode(media_bombs.scans(500))


def test_a_pillow_image_that_is_cut_is_refused_however_it_was_opened() -> None:
    cut = media.encoded(media.picture(300, 300), "JPEG")[:2000]
    with pytest.raises(MediaError, match="cannot be decoded"):
        convert(Image.open(io.BytesIO(cut)))


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_a_pillow_image_without_pixels_is_refused(size) -> None:
    with pytest.raises(MediaError, match="no pixels"):
        convert(Image.new("RGB", size))


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(7) + b";"])
def test_a_file_that_is_only_begun_is_refused_without_an_objects_address(data) -> None:
    with pytest.raises(MediaError) as refused:
        decode(data)
    assert " object at 0x" not in str(refused.value)


def test_an_image_has_no_options() -> None:
    with pytest.raises(MediaError, match="no option 'rate'"):
        DECODER.decode(media.encoded(media.picture(), "PNG"), media.limits(), {"rate": 1})


def test_content_differs_by_pixels_and_by_shape() -> None:
    images = [media.picture(4, 6), media.picture(6, 4), Image.new("RGB", (4, 6))]
    reshaped = Image.frombytes("RGB", (6, 4), images[0].tobytes())
    assert len({b"".join(DECODER.content(image)) for image in [*images, reshaped]}) == 4
