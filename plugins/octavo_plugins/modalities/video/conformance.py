"""What the conformance kit tries the decoder of videos with."""

from __future__ import annotations

from io import BytesIO

import av
import numpy as np
from PIL import Image

from octavo.testing.media_items import clip
from octavo.testing.modality import ModalitySamples
from octavo_registry.modalities import VideoClip

MANY = 10_000
RATE = 10


def samples() -> ModalitySamples:
    """Files of two kinds, and frames in all forms."""
    mp4, gif = _mp4(clip(0, 0)), _gif(clip(1, 0))
    return ModalitySamples(
        encoded={"MP4": mp4, "GIF": gif},
        given={
            "a VideoClip": clip(1, 1),
            "an array of frames": clip(1, 2).frames,
            "a list of images": [Image.fromarray(frame) for frame in clip(0, 3).frames],
        },
        broken={
            "the first half of an MP4": mp4[: len(mp4) // 2],
            "a GIF of one byte": b"G",
            "zeros": bytes(100),
        },
        bombs={"a GIF of 10,000 frames": _long_gif()},
    )


def _mp4(video: VideoClip) -> bytes:
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.height, stream.width = video.frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in video.frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def _gif(video: VideoClip) -> bytes:
    first, *others = [Image.fromarray(frame) for frame in video.frames]
    file = BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=40)
    return file.getvalue()


def _long_gif() -> bytes:
    """Its second frame again and again."""
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    frames[1] = 255
    data = _gif(VideoClip(frames=frames))
    begin = data.rindex(b"\x21\xf9")
    return data[:begin] + data[begin:-1] * MANY + b";"
