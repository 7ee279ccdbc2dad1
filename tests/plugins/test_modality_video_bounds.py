"""Videos at the bounds of frames and pixels and above them, and the memory that they ask for."""

from __future__ import annotations

import numpy as np
import pytest

import media_files as media
from octavo_plugins.modalities import containers
from octavo_plugins.modalities.video import reading
from octavo_plugins.modalities.video.decoder import VideoDecoder
from octavo_registry import MediaLimitError, VideoClip


def decode(data: bytes, options: dict[str, object] | None = None, **limits: object) -> VideoClip:
    return VideoDecoder().decode(data, media.limits(**limits), options or {})


def test_too_many_frames_are_refused_unless_they_are_sampled() -> None:
    data = media.video(num_frames=30)
    with pytest.raises(MediaLimitError, match="30 frames; at most 29"):
        decode(data, max_frames=29)
    assert len(decode(data, {"num_frames": 29}, max_frames=29).frames) == 29


def test_an_animation_of_too_many_frames_is_refused_even_if_sampled() -> None:
    with pytest.raises(MediaLimitError, match="more than 3 frames"):
        decode(media.animated("GIF", 9), {"num_frames": 2}, max_animation_frames=3)


def test_of_an_animation_only_the_frames_that_are_seen_count_as_a_videos() -> None:
    data = media.animated("GIF", 40)
    every = decode(data)
    clip = decode(data, {"num_frames": 8}, max_frames=8)
    assert np.array_equal(clip.frames, every.frames[::5])
    assert clip.timestamps == every.timestamps[::5]
    with pytest.raises(MediaLimitError, match="40 frames; at most 8: sample fewer"):
        decode(data, max_frames=8)


@pytest.mark.parametrize(("codec", "container"), media.VIDEO_FORMATS)
@pytest.mark.parametrize(
    ("width", "height"), [(36, 18), (38, 70), (64, 98), (96, 96), (106, 70), (256, 144)]
)
def test_frames_may_have_as_many_pixels_as_the_limit_says(codec, container, width, height) -> None:
    """FFmpeg's decoders round sides up, and would count what they add."""
    data = media.video(codec, container, num_frames=2, width=width, height=height)
    assert decode(data, max_pixels=width * height).frames.shape[1:3] == (height, width)
    with pytest.raises(MediaLimitError, match=f"at most {width * height - 1:,}"):
        decode(data, max_pixels=width * height - 1)


@pytest.mark.parametrize(("codec", "container"), media.VIDEO_FORMATS)
def test_large_frames_are_refused_before_one_is_decoded(codec, container, monkeypatch) -> None:
    data = media.video(codec, container)
    monkeypatch.setattr(reading, "_frames_at", None)
    monkeypatch.setattr(containers, "PADDED_PIXELS", 0)
    # FFmpeg decodes a frame of VP9 to learn its size, and must keep to the limit in that, too.
    told = "above 3,071 pixels" if codec == "libvpx-vp9" else r"64 x 48|above 3,071 pixels"
    with pytest.raises(MediaLimitError, match=told):
        decode(data, max_pixels=64 * 48 - 1)


def test_memory_is_reserved_for_all_frames_before_it_is_taken() -> None:
    def refuse(num_bytes: int) -> None:
        raise MediaLimitError(f"{num_bytes} asked for")

    with pytest.raises(MediaLimitError, match=f"{30 * 64 * 48 * 3} asked for"):
        decode(media.video(), reserve=refuse)
