"""Encoded sound and arrays, each as mono float32 at the rate that a model asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final

import librosa
import numpy as np
from numpy.typing import NDArray

from octavo.multimodal.librosa_loading import loading_librosa
from octavo_plugins.modalities.audio.reading import open_sound
from octavo_plugins.modalities.formats import read_options
from octavo_registry.modalities import AudioClip, MediaError, MediaLimits

MIN_RATE, MAX_RATE = 1000, 768_000
MAX_CHANNELS: Final = 16
SAMPLE_BYTES: Final = 4
CHUNK: Final = 1 << 16
LOUDEST: Final = 2.0**32
"""Integers that nobody has scaled are below it; encoders square what they hear, in float32."""
FULL_SCALE: Final = {"int16": 2.0**15, "int32": 2.0**31}


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What a model asks for."""

    rate: int | None = None
    """Samples per second; None: as they are."""

    def __post_init__(self) -> None:
        if self.rate is not None:
            _check_rate(self.rate)


class AudioDecoder:
    """Returns an AudioClip."""

    def __init__(self) -> None:
        with loading_librosa():
            silence_CT = np.zeros((1, 2), np.float32)
            librosa.resample(librosa.to_mono(silence_CT), orig_sr=2, target_sr=1)

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> AudioClip:
        """Decode a WAV, FLAC, MP3, Ogg, M4A or WebM, chunk by chunk."""
        wanted = read_options(AudioOptions, options)
        with open_sound(data, limits) as sound:
            _check_rate(sound.rate)
            _check_channels(sound.channels)
            clip = _Clip(sound.rate, wanted, limits)
            for chunk in sound.chunks():
                clip.add(chunk)
        return clip.finish()

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> AudioClip:
        """Convert ``(array, rate)``, of [samples] or [channels, samples], or an AudioClip."""
        wanted = read_options(AudioOptions, options)
        if isinstance(given, AudioClip):
            given = (given.samples, given.rate)
        if not self.is_item(given):
            raise MediaError(
                f"it is a {type(given).__name__}; give (array, rate), bytes, a Path or a URL"
            )
        samples, rate = given
        if not hasattr(samples, "__array__"):
            raise MediaError(f"its samples are a {type(samples).__name__}; give (array, rate)")
        samples = np.asarray(samples)
        _check_rate(rate)
        if samples.ndim not in (1, 2) or samples.size == 0:
            raise MediaError(
                f"it has the shape {list(samples.shape)}; give [samples] or [channels, samples]"
            )
        samples_CT = np.atleast_2d(samples)
        _check_channels(len(samples_CT))
        if samples.dtype.kind != "f" and samples.dtype.name not in FULL_SCALE:
            raise MediaError(f"it has samples of type {samples.dtype}; give float, int16 or int32")
        scale = np.float32(1 / FULL_SCALE.get(samples.dtype.name, 1.0))
        clip = _Clip(rate, wanted, limits)
        for start in range(0, samples_CT.shape[1], CHUNK):
            chunk_CT = samples_CT[:, start : start + CHUNK].astype(np.float32, copy=False)
            clip.add(chunk_CT if scale == 1 else chunk_CT * scale)
        return clip.finish()

    def is_item(self, given: Sequence[Any]) -> bool:
        """Samples with their rate: no number is an item by itself."""
        return isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], Real)

    def content(self, value: AudioClip) -> Iterator[bytes | memoryview]:
        """Rate and samples."""
        yield f"{value.rate} Hz:".encode()
        yield np.ascontiguousarray(value.samples).data.cast("B")


class _Clip:
    """Collects a sound in one channel, for librosa to resample the whole."""

    def __init__(self, rate: int, wanted: AudioOptions, limits: MediaLimits) -> None:
        self._from = int(rate)
        self._to = int(wanted.rate or rate)
        self._limits = limits
        self._chunks: list[NDArray[np.float32]] = []
        self._num_samples = 0

    def add(self, samples_CT: NDArray[np.float32]) -> None:
        self._limits.check_time()
        num_samples = samples_CT.shape[1]
        self._num_samples += num_samples
        self._limits.check_seconds(self._num_samples / self._from)
        if num_samples and not (samples_CT.min() >= -LOUDEST and samples_CT.max() <= LOUDEST):
            raise MediaError(f"it has samples that are not finite, or beyond {LOUDEST:g}")
        self._limits.reserve(2 * num_samples * SAMPLE_BYTES)  # also in one piece at the end
        one_channel = len(samples_CT) == 1
        self._chunks.append(samples_CT[0] if one_channel else librosa.to_mono(samples_CT))

    def finish(self) -> AudioClip:
        if self._num_samples == 0:
            raise MediaError("it has no samples")
        self._limits.check_time()
        samples = np.concatenate(self._chunks)
        self._chunks.clear()
        if self._from != self._to:
            length = -(-self._num_samples * self._to // self._from)
            self._limits.reserve(2 * length * SAMPLE_BYTES)  # once more to be of just that length
            samples = librosa.resample(samples, orig_sr=self._from, target_sr=self._to)
        return AudioClip(samples=samples, rate=self._to)


def _check_rate(rate: Any) -> None:
    is_number = isinstance(rate, Real) and not isinstance(rate, bool)
    if not is_number or not MIN_RATE <= rate <= MAX_RATE or rate != int(rate):
        raise MediaError(
            f"it has a rate of {rate!r} per second; give a whole number from {MIN_RATE:,} to "
            f"{MAX_RATE:,}"
        )


def _check_channels(num_channels: int) -> None:
    if not 0 < num_channels <= MAX_CHANNELS:
        raise MediaError(
            f"it has {num_channels:,} channels; at most {MAX_CHANNELS}, and an array's first axis "
            "is its channels"
        )
