"""Encoded videos, and frames that are decoded already, as a VideoClip."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final

import numpy as np

from octavo_plugins.modalities.formats import check_format, read_options
from octavo_plugins.modalities.gif import count_gif_frames
from octavo_plugins.modalities.image.decoder import ImageDecoder
from octavo_plugins.modalities.video.reading import read_video
from octavo_plugins.modalities.video.sampling import Sampling
from octavo_registry.modalities import MediaError, MediaLimits, VideoClip

FORMATS: Final = ("MP4", "Matroska", "GIF")


class VideoDecoder:
    """Returns a VideoClip."""

    def __init__(self) -> None:
        self._images = ImageDecoder()

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> VideoClip:
        """Decode the sampled frames of an MP4, WebM, Matroska or GIF; the options of Sampling."""
        sampling = read_options(Sampling, options)
        kind = check_format(data, FORMATS)
        if kind == "GIF":  # each frame is drawn on the one before: none can be passed over
            limits.check_pixels(*struct.unpack("<HH", data[6:10].ljust(4, b"\0")))
            limits.check_animation(count_gif_frames(data, most=limits.max_animation_frames))
        return read_video(data, kind, sampling, limits)

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> VideoClip:
        """Take frames as they are, without sampling: a VideoClip, an array, or a list of images.

        An array is uint8 [frames, height, width, 3]; images are what "image" takes.
        """
        read_options(Sampling, options)
        if isinstance(given, VideoClip):
            clip = given
        elif hasattr(given, "__array__"):
            clip = VideoClip(frames=np.asarray(given))
        elif isinstance(given, (list, tuple)) and given:
            limits.check_frames(len(given))
            for number, frame in enumerate(given, start=1):
                if isinstance(frame, (bytes, str, PathLike)):
                    raise MediaError(
                        f"its frame {number} is a {type(frame).__name__}; frames in a list are "
                        "decoded already: Pillow images or arrays of pixels"
                    )
            images = [self._images.convert(frame, limits, {}) for frame in given]  # reserves
            if len({image.size for image in images}) > 1:
                raise MediaError("it has frames of several sizes; give all in one")
            clip = VideoClip(frames=np.stack([np.asarray(image) for image in images]))
        else:
            raise MediaError(
                f"it is a {type(given).__name__}; give an array of frames, a list of images, a "
                "VideoClip, bytes, a pathlib.Path or a URL"
            )
        _check(clip, limits)
        if not isinstance(given, (list, tuple)):
            limits.reserve(clip.frames.nbytes)
        return clip

    def is_item(self, given: Sequence[Any]) -> bool:
        """Images are the frames of one video; what could be a video by itself is not."""
        return all(
            hasattr(each, "getbands") or getattr(each, "ndim", None) in (2, 3) for each in given
        )

    def content(self, value: VideoClip) -> Iterator[bytes | memoryview]:
        """Shape, times and pixels."""
        yield f"{value.frames.shape} {value.timestamps}:".encode()
        yield np.ascontiguousarray(value.frames).data.cast("B")


def _check(clip: VideoClip, limits: MediaLimits) -> None:
    shape = clip.frames.shape
    if len(shape) != 4 or shape[3] != 3 or 0 in shape:
        raise MediaError(f"it has the shape {list(shape)}; frames are [frames, height, width, 3]")
    if clip.frames.dtype != np.uint8:
        raise MediaError(f"it has frames of type {clip.frames.dtype}; give uint8 from 0 to 255")
    if clip.timestamps is not None and len(clip.timestamps) != len(clip.frames):
        raise MediaError(f"it has {len(clip.timestamps)} timestamps for {len(clip.frames)} frames")
    limits.check_frames(len(clip.frames))
    limits.check_pixels(shape[2], shape[1])
