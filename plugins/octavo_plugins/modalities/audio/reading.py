"""Encoded sound as chunks of samples, by libsndfile or, where that lacks the format, FFmpeg."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import Any, Final

import numpy as np
import soundfile
from numpy.typing import NDArray

from octavo_plugins.modalities.containers import DEMUXERS, first_stream, open_container
from octavo_plugins.modalities.formats import check_format, decoding
from octavo_registry.modalities import MediaError, MediaLimits

FORMATS: Final = ("WAV", "FLAC", "MP3", "Ogg", "MP4", "Matroska")
CODECS: Final = frozenset({"aac", "alac", "flac", "mp3", "mp3float", "opus", "vorbis"})
CHUNK_SAMPLES: Final = 1 << 18
"""Samples of all channels that are read at once."""
OPEN_END: Final = (0, 0xFFFFFFFF, 0x7FFFFFFF)
"""Sizes in the header of a WAV that was written to a pipe."""
LAST_PAGE: Final = 0x04


@dataclass(frozen=True, slots=True)
class Sound:
    """An opened file; ``chunks`` gives float32 [channels, samples] until its end."""

    rate: int
    channels: int
    chunks: Callable[[], Iterator[NDArray[np.float32]]]


@contextmanager
def open_sound(data: bytes, limits: MediaLimits) -> Iterator[Sound]:
    """Open encoded sound; what the header promises is checked before anything is decoded."""
    kind = check_format(data, FORMATS)
    if kind in DEMUXERS:
        with _open_with_ffmpeg(data, kind, limits) as sound:
            yield sound
        return
    if kind == "WAV":
        _check_wav(data)
    if kind == "Ogg":
        _check_ogg(data)
    with decoding(kind), _SoundFile(BytesIO(data)) as file:
        limits.check_seconds(file.frames / file.samplerate)
        yield Sound(file.samplerate, file.channels, lambda: _read(file))


class _SoundFile(soundfile.SoundFile):  # type: ignore[misc] # soundfile has no types
    """A file that is read from beginning to end.

    Of one that it can seek in soundfile seeks to where it is after every read, and an MP3 decoder
    begins anew there: 0.03 seconds of each chunk were silent.
    """

    def seekable(self) -> bool:
        return False


def _read(file: soundfile.SoundFile) -> Iterator[NDArray[np.float32]]:
    expected, num_frames = file.frames, 0
    while True:
        frames = file.read(CHUNK_SAMPLES // file.channels, dtype="float32", always_2d=True)
        if not len(frames):
            break
        num_frames += len(frames)
        yield frames.T
    if num_frames < expected:
        raise MediaError(f"it is cut: {num_frames:,} of {expected:,} samples are there")


@contextmanager
def _open_with_ffmpeg(data: bytes, kind: str, limits: MediaLimits) -> Iterator[Sound]:
    with open_container(data, kind, CODECS, limits) as container:
        stream = first_stream(container.streams.audio, "sound", CODECS)
        context = stream.codec_context
        if stream.duration is not None and stream.time_base is not None:
            limits.check_seconds(float(stream.duration * stream.time_base))
        yield Sound(context.sample_rate, context.channels, lambda: _decode(container, stream))


def _decode(container: Any, stream: Any) -> Iterator[NDArray[np.float32]]:
    from av import AudioResampler

    context = stream.codec_context
    planar = AudioResampler(format="fltp", layout=context.layout, rate=context.sample_rate)
    for frame in chain(container.decode(stream), [None]):
        for same in planar.resample(frame):
            yield same.to_ndarray().astype(np.float32, copy=False)


def _check_wav(data: bytes) -> None:
    """Refuse a file shorter than its header says, which libsndfile reads as far as it goes."""
    position = 12
    while position + 8 <= len(data):
        name = data[position : position + 4]
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        if name == b"data":
            there = len(data) - position - 8
            if size not in OPEN_END and size > there:
                raise MediaError(f"it is cut: {there:,} of {size:,} bytes are there")
            return
        position += 8 + size + (size & 1)
    raise MediaError("it is cut: a WAV without samples")


def _check_ogg(data: bytes) -> None:
    """Refuse a file whose last page is not marked as such."""
    last = data.rfind(b"OggS")
    if len(data) < last + 27 or not data[last + 5] & LAST_PAGE:
        raise MediaError("it is cut: an Ogg without its last page")
