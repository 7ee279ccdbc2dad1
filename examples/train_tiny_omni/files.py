"""Media as the bytes of files, in formats that the model has never seen any of in training."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import soundfile
from examples.train_tiny_omni.clips import Clip
from examples.train_tiny_omni.corpus import Drawn
from examples.train_tiny_omni.sounds import Sound
from PIL import Image

PICTURES = ("png", "jpeg", "webp", "gif")
CLIPS = ("mp4", "gif")
SOUNDS = ("wav", "flac", "ogg", "mp3")
RATES = (16000, 22050, 24000, 44100, 48000)
"""Rates of sounds that are drawn for the test."""
FRAMES_PER_SECOND = (4, 8, 12, 25)


def encoded(item: Drawn, number: int) -> tuple[str, bytes]:
    """The format and the bytes; another format for each number."""
    if isinstance(item, Clip):
        kind = CLIPS[number % len(CLIPS)]
        rate = FRAMES_PER_SECOND[number % len(FRAMES_PER_SECOND)]
        return kind, mp4(item.frames, rate) if kind == "mp4" else gif(item.frames, rate)
    if isinstance(item, Sound):
        kind = SOUNDS[number % len(SOUNDS)]
        file = BytesIO()
        soundfile.write(file, item.samples_S, item.rate, format=kind.upper())
        return kind, file.getvalue()
    kind = PICTURES[number % len(PICTURES)]
    return kind, picture(item.image, kind)


def picture(image: Image.Image, kind: str) -> bytes:
    file = BytesIO()
    image.save(file, kind.upper(), quality=70)
    return file.getvalue()


def gif(frames: Sequence[Image.Image], rate: int) -> bytes:
    file = BytesIO()
    first, *others = frames
    first.save(file, "GIF", save_all=True, append_images=others, duration=1000 // rate)
    return file.getvalue()


def mp4(frames: Sequence[Image.Image], rate: int) -> bytes:
    """H.264, whose sides are even."""
    import av

    width, height = (side // 2 * 2 for side in frames[0].size)
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            cut = np.asarray(frame)[:height, :width]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(cut, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
