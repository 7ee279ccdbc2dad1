"""Small encoded images, videos and sounds, and what a decoder needs besides them."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np
import soundfile
from PIL import Image

from octavo_registry import MediaLimits

VIDEO_FORMATS = [
    ("mpeg4", "mp4"),
    ("libx264", "mp4"),
    ("libx264", "mov"),
    ("libx264", "matroska"),
    ("libvpx", "webm"),
    ("libvpx-vp9", "webm"),
    ("libsvtav1", "mp4"),
    ("gif", "gif"),
]


def limits(**given: Any) -> MediaLimits:
    return MediaLimits(
        **{"max_pixels": 89_000_000, "max_frames": 512, "max_seconds": 600.0, **given}
    )


def picture(width: int = 37, height: int = 23, mode: str = "RGB") -> Image.Image:
    """A smooth picture in which every place and direction can be told."""
    y, x = np.mgrid[0:height, 0:width]
    red, green, blue = x * 255 // width, y * 255 // height, (x + y) * 3 % 256
    return Image.fromarray(np.stack([red, green, blue], -1).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def animated(kind: str, num_frames: int, size: int = 8) -> bytes:
    frames = [Image.new("P", (size, size), index % 256) for index in range(num_frames)]
    for frame in frames:
        frame.putpalette([value for index in range(256) for value in (index, 255 - index, 7)])
    if kind != "GIF":
        frames = [frame.convert("RGB") for frame in frames]
    if kind == "WEBP":  # which drops frames that are equal when encoded
        return encoded(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=40)


def clip_frame(index: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A grey level for each frame, so that a decoded one tells which it is; left is darker."""
    pixels = np.full((height, width, 3), 40 + index * 3 % 200, np.uint8)
    pixels[:, : width // 4] = 0
    return pixels


def video(
    codec: str = "mpeg4",
    container: str = "mp4",
    *,
    num_frames: int = 30,
    rate: int = 10,
    width: int = 64,
    height: int = 48,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=container_options or {}) as file:
        stream = file.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = width, height
        stream.codec_context.thread_count = 1  # libvpx's spin, on a busy machine without an end
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        for index in range(num_frames):
            pixels = clip_frame(index, width, height)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def video_with_sound(*, seconds: int, rate: int = 48000) -> bytes:
    """A MOV whose sound is not compressed, as cameras write it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mov") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        audio = file.add_stream("pcm_s16le", rate=rate, layout="mono")
        for index in range(10 * seconds):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(clip_frame(index), format="rgb24")))
            silent = np.zeros((1, rate // 10), np.int16)
            frame = av.AudioFrame.from_ndarray(silent, format="s16", layout="mono")
            frame.rate, frame.pts = rate, index * rate // 10
            file.mux(audio.encode(frame))
        file.mux(stream.encode(None))
        file.mux(audio.encode(None))
    return buffer.getvalue()


def tone(seconds: float = 0.5, rate: int = 22050, channels: int = 1) -> np.ndarray:
    """Float32 [samples] or [samples, channels]; each channel has a pitch of its own."""
    time = np.arange(int(seconds * rate)) / rate
    waves = [0.5 * np.sin(2 * np.pi * 220 * (n + 1) * time) for n in range(channels)]
    return (waves[0] if channels == 1 else np.stack(waves, -1)).astype(np.float32)


def sound(
    kind: str = "WAV", *, seconds: float = 0.5, rate: int = 22050, channels: int = 1, **options: Any
) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(seconds, rate, channels), rate, format=kind, **options)
    return buffer.getvalue()


def m4a(*, seconds: float = 0.5, rate: int = 22050, container: str = "ipod") -> bytes:
    buffer = io.BytesIO()
    codec = "libopus" if container == "webm" else "aac"
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone(seconds, rate)[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return buffer.getvalue()
