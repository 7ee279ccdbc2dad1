"""The frames of an encoded video that are wanted, and no others in memory."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_plugins.modalities.containers import decoder_options, first_stream, open_container
from octavo_plugins.modalities.mp4 import MAX_SAMPLES
from octavo_plugins.modalities.video.sampling import Sampling
from octavo_registry.modalities import MediaError, MediaLimitError, MediaLimits, VideoClip

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

CODECS: Final = frozenset(
    {"av1", "gif", "h264", "hevc", "libdav1d", "libvpx", "libvpx-vp9", "mjpeg", "mpeg4", "vp8"}
    | {"vp9"}
)
NUM_THREADS: Final = 4
"""Each may hold a frame of its own; FFmpeg's choice grows with the machine."""
CHECK_EVERY: Final = 256
VP8_SHOWN: Final = 0x10


@dataclass(frozen=True, slots=True)
class Times:
    """When frames are shown, in units of the stream, sorted."""

    shown: list[int]
    keys: list[tuple[int, int]]
    """When frames at which decoding can begin are shown, and when they are decoded."""

    def key_before(self, time: int) -> tuple[int, int]:
        """The last one that is shown by then, or the first frame of all."""
        position = bisect_right(self.keys, (time, sys.maxsize))
        return self.keys[position - 1] if position else (self.shown[0], self.shown[0])


def read_video(data: bytes, kind: str, sampling: Sampling, limits: MediaLimits) -> VideoClip:
    """Decode the frames that ``sampling`` chooses."""
    with open_container(data, kind, CODECS, limits) as container:
        stream = first_stream(container.streams.video, "video", CODECS)
        context = stream.codec_context
        limits.check_pixels(context.width, context.height)
        if not context.width * context.height:  # FFmpeg has looked at a frame and refused it
            raise MediaLimitError(f"its frames have no size, or above {limits.max_pixels:,} pixels")
        context.options = decoder_options(limits)  # where the size changes
        times = _read_times(container, stream, limits)
        unit = stream.time_base
        if unit is None:
            raise MediaError("it is a video without a clock")
        shown, total = times.shown, len(times.shown)
        seconds = float((shown[-1] - shown[0]) * unit) * total / max(total - 1, 1)
        wanted = [shown[index] for index in sampling.choose(total, seconds)]
        limits.check_frames(len(wanted))
        frames, found = _decode(container, stream, wanted, times, limits)
    return VideoClip(
        frames=frames, timestamps=tuple(float((time - shown[0]) * unit) for time in found)
    )


def _read_times(container: InputContainer, stream: VideoStream, limits: MediaLimits) -> Times:
    """Go through the file without decoding."""
    shown, keys = [], []
    for number, packet in enumerate(container.demux(stream)):
        if number % CHECK_EVERY == 0:
            limits.check_time()
        if number >= MAX_SAMPLES:
            raise MediaLimitError(f"it has more than {MAX_SAMPLES:,} packets")
        if packet.size == 0 or packet.is_discard or _is_hidden(packet, stream):
            continue
        if packet.pts is None:
            raise MediaError("it is a video whose frames have no times")
        shown.append(packet.pts)
        if packet.is_keyframe:
            keys.append((packet.pts, packet.pts if packet.dts is None else packet.dts))
    if len(shown) < max(stream.frames, 1):
        raise MediaError(f"it is cut: {len(shown):,} of {max(stream.frames, 1):,} frames are there")
    return Times(sorted(shown), sorted(keys))


def _is_hidden(packet: Any, stream: VideoStream) -> bool:
    """VP8 alone has frames that are only there to predict others from, in packets of their own."""
    return stream.codec_context.name in ("vp8", "libvpx") and not memoryview(packet)[0] & VP8_SHOWN


def _decode(
    container: InputContainer,
    stream: VideoStream,
    wanted: list[int],
    times: Times,
    limits: MediaLimits,
) -> tuple[NDArray[np.uint8], list[int]]:
    """Decode the frames at these times; return them and their times."""
    frames: NDArray[np.uint8] | None = None
    found: list[int] = []
    for frame in _frames_at(container, stream, wanted, times, limits):
        pixels = _upright(frame)
        if frames is None:
            limits.reserve(len(wanted) * pixels.nbytes)
            frames = np.empty((len(wanted), *pixels.shape), np.uint8)
        if pixels.shape != frames.shape[1:]:
            raise MediaError("it is a video whose frames change their size; encode it anew")
        frames[len(found)] = pixels
        found.append(frame.pts or 0)
    if frames is None or len(found) < len(wanted):
        raise MediaError(f"it is damaged: only {len(found)} of {len(wanted)} frames can be decoded")
    return frames, found


def _frames_at(
    container: InputContainer,
    stream: VideoStream,
    wanted: list[int],
    times: Times,
    limits: MediaLimits,
) -> Iterator[VideoFrame]:
    """The first frame at or after each time, jumping where a later key frame is on the way."""
    stream.thread_type = "AUTO"
    stream.codec_context.thread_count = NUM_THREADS
    container.seek(times.shown[0], stream=stream)
    decoded: Iterator[VideoFrame] = container.decode(stream)
    now = times.shown[0] - 1
    for time in wanted:
        key, decoded_at = times.key_before(time)
        if now < key > times.shown[0]:
            container.seek(decoded_at, stream=stream)
            decoded = container.decode(stream)
        for frame in decoded:
            limits.check_time()
            limits.check_pixels(frame.width, frame.height)
            if frame.pts is not None and frame.pts >= time:
                now = frame.pts
                yield frame
                break


def _upright(frame: VideoFrame) -> NDArray[np.uint8]:
    """The frame in RGB, turned as its recorder was held."""
    pixels = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    return np.rot90(pixels, round(frame.rotation / 90))
