"""Sounds: equal to libsndfile, FFmpeg, soxr and librosa.load; limits, cut files and arrays."""

from __future__ import annotations

import io
import random
import struct
import time

import av
import librosa
import numpy as np
import pytest
import soundfile
import soxr

import media_files as media
from octavo_plugins.modalities.audio.decoder import AudioDecoder
from octavo_registry import AudioClip, MediaError, MediaLimitError

DECODER = AudioDecoder()


def decode(data: bytes, rate: int | None = None, **limits: object) -> AudioClip:
    return DECODER.decode(data, media.limits(**limits), {"rate": rate})


def convert(given: object, rate: int | None = None, **limits: object) -> AudioClip:
    return DECODER.convert(given, media.limits(**limits), {"rate": rate})


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_sound_is_what_libsndfile_reads_mixed_to_mono(kind, channels) -> None:
    data = media.sound(kind, seconds=4, rate=44100, channels=channels)
    samples, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    clip = decode(data)
    assert clip.rate == 44100
    assert clip.samples.dtype == np.float32
    np.testing.assert_allclose(clip.samples, samples.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("container", ["ipod", "mp4", "webm"])
def test_an_m4a_or_webm_is_what_ffmpeg_decodes(container) -> None:
    data = media.m4a(container=container, rate=48000, seconds=2)
    with av.open(io.BytesIO(data)) as file:
        expected = np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1)
    clip = decode(data)
    assert clip.rate == 48000
    assert np.array_equal(clip.samples, expected.mean(axis=0))


@pytest.mark.parametrize(("rate", "wanted"), [(48000, 16000), (22050, 16000), (8000, 24000)])
@pytest.mark.parametrize("num_samples", [1, 100, 150_005])
def test_an_array_is_resampled_by_soxr_and_as_long_as_it_was(rate, wanted, num_samples) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, num_samples).astype(np.float32)
    clip = convert((noise, rate), wanted)
    expected = soxr.resample(noise, rate, wanted, quality="HQ")
    assert clip.rate == wanted
    assert clip.samples.dtype == np.float32
    assert len(clip.samples) == -(-num_samples * wanted // rate)
    assert np.array_equal(clip.samples[: len(expected)], expected[: len(clip.samples)])


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
@pytest.mark.parametrize(("rate", "wanted"), [(44100, 16000), (8000, 16000)])
def test_a_file_is_what_librosa_loads_at_the_wanted_rate(kind, rate, wanted) -> None:
    data = media.sound(kind, seconds=7, rate=rate, channels=2)
    expected, _ = librosa.load(io.BytesIO(data), sr=wanted, mono=True)
    clip = decode(data, wanted)
    assert clip.samples.shape == expected.shape
    np.testing.assert_allclose(clip.samples, expected, atol=2e-7)


def test_an_array_is_mono_or_has_its_channels_first() -> None:
    stereo = media.tone(channels=2)
    assert np.array_equal(convert((stereo[:, 0], 22050)).samples, stereo[:, 0])
    np.testing.assert_allclose(convert((stereo.T, 22050)).samples, stereo.mean(axis=1), atol=1e-7)
    clip = AudioClip(samples=stereo[:, 0].copy(), rate=22050)
    assert np.array_equal(convert(clip).samples, stereo[:, 0])


@pytest.mark.parametrize("rate", [22050.0, np.float64(22050), np.int32(22050)])
def test_a_rate_may_be_any_whole_number(rate) -> None:
    samples = media.tone()
    assert DECODER.is_item((samples, rate))
    clip = convert((samples, rate))
    assert clip.rate == 22050
    assert np.array_equal(clip.samples, samples)


def test_whole_numbers_are_scaled_to_one() -> None:
    for dtype in (np.int16, np.int32):
        full = np.array([np.iinfo(dtype).min, 0, np.iinfo(dtype).max // 2 + 1], dtype)
        assert convert((full, 16000)).samples.tolist() == [-1.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((np.zeros((4000, 2), np.float32), 16000), "4,000 channels.*first axis"),
        ((np.zeros(9, np.uint8), 16000), "uint8"),
        ((np.zeros(0, np.float32), 16000), "shape"),
        ((np.array([0, np.nan], np.float32), 16000), "not finite"),
        ((np.array([0, np.inf]), 16000), "not finite"),
        ((np.array([0, -1e10]), 16000), "beyond 4.29497e\\+09"),
        ((np.zeros(9, np.float32), 0), "rate of 0"),
        ((np.zeros(9, np.float32), True), "rate of True"),
        ((np.zeros(9, np.float32), 16000.5), "rate of 16000.5 per second; give a whole number"),
        ((np.zeros(9, np.float32), float("nan")), "rate of nan"),
        (([0.0] * 9, 16000), "its samples are a list; give \\(array, rate\\)"),
        ((b"RIFF", 16000), "its samples are a bytes; give \\(array, rate\\)"),
        (np.zeros(9, np.float32), "it is a ndarray; give \\(array, rate\\)"),
        ([1.0, 2.0], "its samples are a float"),
    ],
)
def test_what_is_no_clear_sound_is_refused(given, match) -> None:
    with pytest.raises(MediaError, match=match):
        convert(given)


@pytest.mark.parametrize("rate", [0, -1, 10**9, "16000", 16000.5, True])
def test_a_rate_that_no_sound_has_is_refused(rate) -> None:
    with pytest.raises(MediaError, match="rate of"):
        decode(media.sound(), rate)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
def test_a_cut_sound_is_refused(kind) -> None:
    data = media.sound(kind, seconds=3)
    for length in (30, len(data) // 2, len(data) * 4 // 5):
        with pytest.raises(MediaError):
            decode(data[:length])


def test_an_ogg_that_is_cut_between_pages_is_refused() -> None:
    data = media.sound("OGG", seconds=3)
    with pytest.raises(MediaError, match="last page"):
        decode(data[: data.rindex(b"OggS")])


@pytest.mark.parametrize("container", ["ipod", "webm"])
def test_a_cut_m4a_or_webm_is_refused(container) -> None:
    data = media.m4a(container=container, rate=48000, seconds=2)
    for length in (40, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(MediaError):
            decode(data[:length])


def test_a_wav_that_was_piped_has_no_size_and_is_read_to_its_end() -> None:
    data = bytearray(media.sound("WAV"))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = b"\xff" * 4
    assert len(decode(bytes(data)).samples) == len(media.tone())


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
def test_a_long_sound_is_refused_by_its_header(kind, monkeypatch) -> None:
    data = media.sound(kind, seconds=3)
    monkeypatch.setattr(soundfile.SoundFile, "read", None)
    with pytest.raises(MediaLimitError, match=r"3\.\d seconds; at most 2"):
        decode(data, max_seconds=2)


def test_a_long_m4a_is_refused_by_its_header() -> None:
    with pytest.raises(MediaLimitError, match=r"3\.\d seconds; at most 2"):
        decode(media.m4a(seconds=3), max_seconds=2)


def test_a_long_sound_is_refused_where_the_header_does_not_say() -> None:
    """A WebM of a browser says no duration: what is decoded is counted."""
    with pytest.raises(MediaLimitError, match="at most 2"):
        decode(media.m4a(seconds=3, container="webm", rate=48000), max_seconds=2)


def test_a_rate_of_1_hz_does_not_make_days_of_sound() -> None:
    data = bytearray(media.sound("WAV"))
    data[24:28] = struct.pack("<I", 1)
    with pytest.raises(MediaError, match=r"rate of 1 |seconds"):
        decode(bytes(data), 16000)


def test_a_deadline_ends_decoding_between_chunks() -> None:
    with pytest.raises(MediaLimitError, match="too long"):
        decode(media.sound(), deadline=time.monotonic() - 1)


def test_samples_are_reserved_as_they_come() -> None:
    reserved: list[int] = []
    clip = decode(media.sound(seconds=10), 16000, reserve=reserved.append)
    assert len(reserved) > 1
    assert sum(reserved) >= clip.samples.nbytes


def test_a_video_without_sound_has_none() -> None:
    with pytest.raises(MediaError, match="no sound"):
        decode(media.video())


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG", "M4A"])
def test_damage_anywhere_is_a_sound_or_a_refusal(kind) -> None:
    rng = random.Random(0)
    whole = media.m4a() if kind == "M4A" else media.sound(kind, seconds=0.2)
    for _ in range(80):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(min(len(data), 400))] = rng.randrange(256)
        try:
            assert np.isfinite(decode(bytes(data), 16000, max_seconds=60).samples).all()
        except MediaError:
            continue


def test_content_differs_by_samples_and_by_rate() -> None:
    clips = [
        convert((media.tone(), 22050)),
        convert((media.tone(), 16000)),
        convert((media.tone() / 2, 22050)),
    ]
    assert len({b"".join(map(bytes, DECODER.content(clip))) for clip in clips}) == 3
