"""Videos: the frames that PyAV decodes, which of them, when; bombs and cut files."""

from __future__ import annotations

import io
import random
import struct
import time
from fractions import Fraction

import av
import numpy as np
import pytest

import media_bombs
import media_files as media
from octavo_plugins.modalities import mp4
from octavo_plugins.modalities.containers import open_container
from octavo_plugins.modalities.video import reading
from octavo_plugins.modalities.video.decoder import VideoDecoder
from octavo_plugins.modalities.video.sampling import Sampling
from octavo_registry import MediaError, MediaLimitError, MediaLimits, VideoClip

DECODER = VideoDecoder()


def decode(data: bytes, options: dict[str, object] | None = None, **limits: object) -> VideoClip:
    return DECODER.decode(data, media.limits(**limits), options or {})


def convert(given: object, **limits: object) -> VideoClip:
    return DECODER.convert(given, media.limits(**limits), {})


def all_frames(data: bytes) -> tuple[np.ndarray, list[float]]:
    with av.open(io.BytesIO(data)) as file:
        frames = list(file.decode(video=0))
        pixels = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        return pixels, [frame.time - frames[0].time for frame in frames]


@pytest.mark.parametrize(("codec", "container"), media.VIDEO_FORMATS)
def test_a_video_has_the_frames_that_pyav_decodes(codec, container) -> None:
    data = media.video(codec, container)
    pixels, times = all_frames(data)
    clip = decode(data)
    assert len(pixels) == 30
    assert np.array_equal(clip.frames, pixels)
    assert clip.timestamps == pytest.approx(times)
    assert clip.timestamps[10] == pytest.approx(1.0, abs=0.01)


def test_packets_that_show_no_frame_are_not_counted() -> None:
    """Of VP8, whose encoders make frames that are only there to predict others from."""
    with av.open(io.BytesIO(media.video("libvpx", "webm"))) as file:
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    hidden = bytes([packets[1][0] & ~0x10]) + packets[1][1:]
    data = webm_of([packets[0], hidden, *packets[1:12], hidden, *packets[12:]])
    pixels, times = all_frames(data)
    assert len(pixels) == 30
    for options, chosen in (({}, slice(None)), ({"num_frames": 6}, slice(None, None, 5))):
        clip = decode(data, options)
        assert np.array_equal(clip.frames, pixels[chosen])
        assert clip.timestamps == pytest.approx(times[chosen])


def webm_of(packets: list[bytes]) -> bytes:
    """VP8, ten packets a second, as a file that announces 64 x 48."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="webm") as file:
        stream = file.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for time_, data in enumerate(packets):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, time_, time_
            packet.time_base, packet.is_keyframe = Fraction(1, 10), not data[0] & 1
            file.mux(packet)
    return buffer.getvalue()


@pytest.mark.parametrize(("codec", "container"), media.VIDEO_FORMATS)
@pytest.mark.parametrize("group", ["1", "7", "1000"])
def test_sampled_frames_are_those_of_the_whole_wherever_key_frames_are(
    codec, container, group
) -> None:
    options = {"g": group} if codec != "gif" else {}
    data = media.video(codec, container, num_frames=40, options=options)
    pixels, times = all_frames(data)
    for count in (1, 3, 6, 39):
        chosen = [index * 40 // count for index in range(count)]
        clip = decode(data, {"num_frames": count})
        assert np.array_equal(clip.frames, pixels[chosen])
        assert clip.timestamps == pytest.approx([times[index] for index in chosen])


def test_what_lies_before_a_key_frame_is_not_decoded(monkeypatch) -> None:
    seen = []
    check = MediaLimits.check_pixels
    monkeypatch.setattr(
        MediaLimits, "check_pixels", lambda *size: seen.append(size) or check(*size)
    )
    data = media.video("libx264", "mp4", num_frames=400, options={"g": "10"})
    assert len(decode(data, {"num_frames": 4}).frames) == 4
    assert len(seen) < 40


def test_a_video_is_sampled_by_its_seconds() -> None:
    data = media.video(num_frames=60, rate=20)
    clip = decode(data, {"fps": 2.0})
    assert clip.timestamps == pytest.approx([0, 0.5, 1.0, 1.5, 2.0, 2.5])


@pytest.mark.parametrize(
    ("options", "total", "seconds", "chosen"),
    [
        ({}, 3, 1.0, [0, 1, 2]),
        ({"num_frames": 4}, 10, 1.0, [0, 2, 5, 7]),
        ({"num_frames": 20}, 3, 1.0, [0, 1, 2]),
        ({"fps": 1}, 90, 3.0, [0, 30, 60]),
        ({"fps": 0.1}, 90, 3.0, [0]),
        ({"fps": 0.1, "min_frames": 2}, 90, 3.0, [0, 45]),
        ({"fps": 30, "max_frames": 3}, 90, 3.0, [0, 30, 60]),
        ({"fps": 1e300}, 3, 1e300, [0, 1, 2]),
        ({"num_frames": 5, "multiple_of": 2}, 8, 1.0, [0, 2, 4, 6]),
        ({"num_frames": 1, "multiple_of": 2}, 8, 1.0, [0, 4]),
        ({"multiple_of": 2}, 1, 1.0, [0]),
    ],
)
def test_frames_are_spread_evenly_from_the_first(options, total, seconds, chosen) -> None:
    assert Sampling(**options).choose(total, seconds) == chosen


@pytest.mark.parametrize(
    "options",
    [
        {"fps": 0},
        {"fps": float("nan")},
        {"fps": "2"},
        {"num_frames": 2.0},
        {"num_frames": -1},
        {"max_frames": True},
        {"every": 2},
    ],
)
def test_sampling_that_means_nothing_is_refused(options) -> None:
    with pytest.raises(MediaError, match=next(iter(options))):
        decode(media.video(num_frames=2), options)


def test_frames_that_grow_on_the_way_are_refused_before_they_are_decoded() -> None:
    """Two streams of VP8 one after the other, of which the container announces the first."""
    data = webm_of([raw_vp8(width, height) for width, height in ((64, 48), (2048, 1536))])
    with pytest.raises(MediaError, match="decoded"):
        decode(data, max_pixels=100_000)
    with pytest.raises(MediaError, match="change their size"):
        decode(data)


def raw_vp8(width: int, height: int) -> bytes:
    data = media.video("libvpx", "webm", num_frames=1, width=width, height=height)
    with av.open(io.BytesIO(data)) as file:
        return bytes(next(file.demux(video=0)))


@pytest.mark.parametrize(("codec", "container"), media.VIDEO_FORMATS)
def test_a_cut_video_is_refused(codec, container) -> None:
    data = media.video(codec, container)
    for length in (24, len(data) // 2, len(data) - 20):
        with pytest.raises(MediaError):
            decode(data[:length], {"num_frames": 2})


def test_a_video_that_begins_with_its_index_is_refused_when_cut(tmp_path) -> None:
    with (
        av.open(io.BytesIO(media.video())) as source,
        av.open(str(tmp_path / "a.mp4"), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert len(decode(data).frames) == 30
    for length in (len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(MediaError, match="cut"):
            decode(data[:length], {"num_frames": 2})


@pytest.mark.parametrize("kind", ["samples", "times", "fragments", "wide"])
def test_an_mp4_that_declares_more_than_it_has_is_refused_before_ffmpeg_believes_it(
    kind, monkeypatch
) -> None:
    data = media_bombs.mp4_tables()[kind]
    monkeypatch.setattr(av, "open", None)
    with pytest.raises(MediaLimitError, match=r"declares .* samples"):
        decode(data, {"num_frames": 2})


def test_sound_that_ffmpeg_takes_in_chunks_is_bounded_by_these(monkeypatch) -> None:
    """The samples of uncompressed sound are more than any video has frames, and no index."""
    monkeypatch.setattr(mp4, "MAX_SAMPLES", 5000)
    assert len(decode(media.video_with_sound(seconds=2), {"num_frames": 4}).frames) == 4
    monkeypatch.setattr(mp4, "MAX_SAMPLES", 500)
    with pytest.raises(MediaLimitError, match=r"declares .* samples"):
        decode(media.video_with_sound(seconds=2), {"num_frames": 4})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"soun", b"vide"),  # another kind
        (struct.pack(">4sIIII", b"stts", 0, 1, 96000, 1), None),  # samples of another length
        (b"smhd", b"ctts"),  # a table more
        (b"\0\0\0\x10smhd", b"\0\0\0\x10stts"),
    ],
)
def test_a_track_is_taken_for_sound_in_chunks_only_without_doubt(old, new, monkeypatch) -> None:
    monkeypatch.setattr(mp4, "MAX_SAMPLES", 5000)
    data = media.video_with_sound(seconds=2)
    assert old in data
    monkeypatch.setattr(av, "open", None)
    with pytest.raises(MediaLimitError, match=r"declares .* samples"):
        decode(data.replace(old, new or old[:-1] + b"\2"), {"num_frames": 4})


@pytest.mark.parametrize("kind", ["chunks", "chunks elsewhere"])
def test_chunks_of_many_samples_are_refused_before_ffmpeg_makes_packets_of_them(
    kind, monkeypatch
) -> None:
    data = media_bombs.mp4_chunks()[kind]
    monkeypatch.setattr(av, "open", None)
    with pytest.raises(MediaLimitError, match="declares 93,750,000 samples"):
        decode(data)


def test_a_video_of_more_packets_than_any_has_is_refused(monkeypatch) -> None:
    data = media.video("libvpx", "webm")
    monkeypatch.setattr(reading, "MAX_SAMPLES", 29)
    with pytest.raises(MediaLimitError, match="more than 29 packets"):
        decode(data, {"num_frames": 2})


def test_codecs_that_are_not_let_in_are_never_opened() -> None:
    data = media.video("ffv1", "matroska", num_frames=2)
    with open_container(data, "Matroska", {"h264"}, media.limits()) as container:
        assert container.streams.video[0].codec_context.pix_fmt is None
    with pytest.raises(MediaError, match="coded as ffv1"):
        decode(data)


def test_names_of_tables_within_the_coded_media_are_nothing() -> None:
    data = media.video()
    at = data.index(b"mdat") + 4
    size = struct.unpack(">I", data[at - 8 : at - 4])[0]
    noise = struct.pack(">I4sIII", 20, b"stsz", 0, 1, 2**31)
    assert size > len(noise)
    broken = data[:at] + noise + data[at + len(noise) :]
    with pytest.raises(MediaError, match="decoded"):
        decode(broken, {"num_frames": 30})


@pytest.mark.parametrize(
    "playlist",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\n",
    ],
)
def test_lists_of_other_files_are_not_opened(playlist) -> None:
    with pytest.raises(MediaError, match="send one of: MP4, Matroska, GIF"):
        decode(playlist)


def test_a_phones_video_is_turned_upright() -> None:
    data = media.video(num_frames=2)
    quarter = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 2**30)
    at = data.index(b"tkhd") + 4 + 40
    turned = decode(data[:at] + quarter + data[at + 36 :])
    # The matrix turns clockwise by 90 degrees: what was left is at the top.
    assert np.array_equal(turned.frames, np.rot90(decode(data).frames, -1, axes=(1, 2)))


def test_a_deadline_ends_decoding() -> None:
    with pytest.raises(MediaLimitError, match="too long"):
        decode(media.video(), deadline=time.monotonic() - 1)


def test_a_sound_has_no_video() -> None:
    with pytest.raises(MediaError, match="no video"):
        decode(media.m4a())


def test_frames_may_be_given_as_an_array_or_a_list() -> None:
    frames = np.stack([media.clip_frame(index) for index in range(3)])
    assert convert(frames).frames is frames
    images = [media.picture() for _ in range(2)]
    assert np.array_equal(convert(images).frames, np.stack([np.asarray(each) for each in images]))
    assert convert(images).timestamps is None
    assert convert(VideoClip(frames=frames, timestamps=(0, 1, 2))).timestamps == (0, 1, 2)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (np.zeros((2, 3, 8, 8), np.uint8), "shape"),
        (np.zeros((2, 8, 8, 3), np.float32), "float32"),
        ([media.picture(4, 4), media.picture(4, 5)], "several sizes"),
        ([], "a list"),
        (
            VideoClip(frames=np.zeros((2, 8, 8, 3), np.uint8), timestamps=(0.0,)),
            "1 timestamps for 2",
        ),
        (7, "a int"),
        ([media.picture(), b"\x89PNG"], "its frame 2 is a bytes; frames in a list are decoded"),
        (["data:image/png;base64,AAAA"], "its frame 1 is a str; .* Pillow images or arrays"),
    ],
)
def test_what_are_no_frames_is_refused(given, match) -> None:
    with pytest.raises(MediaError, match=match):
        convert(given)


def test_limits_hold_for_frames_that_are_given() -> None:
    with pytest.raises(MediaLimitError, match="5 frames"):
        convert(np.zeros((5, 8, 8, 3), np.uint8), max_frames=4)
    with pytest.raises(MediaLimitError, match="8 x 9"):
        convert(np.zeros((5, 9, 8, 3), np.uint8), max_pixels=71)


def test_frames_that_are_given_are_reserved_once() -> None:
    frames = np.stack([media.clip_frame(index) for index in range(3)])
    for given, num_bytes in ((frames, frames.nbytes), (list(frames), frames.nbytes // 3 * 4)):
        asked: list[int] = []
        convert(given, reserve=asked.append)
        assert sum(asked) == num_bytes


def test_a_list_of_images_is_one_video_and_a_list_of_videos_is_not() -> None:
    frames = [media.picture()] * 2
    assert DECODER.is_item(frames)
    assert DECODER.is_item([np.zeros((4, 4, 3), np.uint8)])
    for several in ([frames, frames], [np.zeros((2, 4, 4, 3), np.uint8)], [b"", "data:"]):
        assert not DECODER.is_item(several)


@pytest.mark.parametrize(
    ("codec", "container"), [media.VIDEO_FORMATS[1], media.VIDEO_FORMATS[5], media.VIDEO_FORMATS[7]]
)
def test_damage_anywhere_is_a_video_or_a_refusal(codec, container) -> None:
    rng = random.Random(0)
    whole = media.video(codec, container, num_frames=8)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(decode(bytes(data), max_pixels=100_000).frames)
        except MediaError:
            continue
