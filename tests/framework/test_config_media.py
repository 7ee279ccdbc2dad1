"""What may be set of media, and what is refused."""

from __future__ import annotations

import pytest

from octavo.config.checks import MAX_COUNT
from octavo.config.media import MediaConfig
from octavo.errors import ConfigError


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_media_domains": ("http://a.example",)},
        {"allowed_media_domains": ("",)},
        {"allowed_media_domains": ("*",)},
        {"allowed_media_domains": ("a.example/x",)},
        {"allowed_local_media_path": "relative"},
        {"media_fetch_timeout": 0},
        {"media_fetch_timeout": float("nan")},
        {"media_decode_timeout": -1},
        {"media_threads": 0},
        {"max_image_megapixels": 1000},
        {"max_media_items": -1},
        {"max_video_frames": MAX_COUNT + 1},
        {"limit_mm_per_prompt": {"image": -1}},
        {"limit_mm_per_prompt": {"image": 1.5}},
        {"limit_mm_per_prompt": {"image": True}},
        {"limit_mm_per_prompt": {"image": {"counts": 1}}},
        {"limit_mm_per_prompt": {"image": {"width": 1}}},
        {"limit_mm_per_prompt": {"image": {"seconds": 2}}},
        {"limit_mm_per_prompt": {"audio": {"num_frames": 2}}},
        {"limit_mm_per_prompt": {"video": {"seconds": 2}}},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(options) -> None:
    with pytest.raises(ConfigError):
        MediaConfig(**options)


def test_every_field_becomes_a_flag() -> None:
    from argparse import ArgumentParser

    from octavo.cli.fields import add_fields, given_fields

    parser = ArgumentParser()
    add_fields(parser, MediaConfig)
    flags = ["--allowed-media-domains", "a.example", "--allowed-media-domains", "*.b.example"]
    flags += ["--limit-mm-per-prompt", '{"image": 4, "video": {"count": 1, "num_frames": 8}}']
    flags += ["--allowed-local-media-path", "/srv/media", "--media-fetch-timeout", "2.5"]
    given = given_fields(parser.parse_args(flags), MediaConfig)
    given["allowed_media_domains"] = tuple(given["allowed_media_domains"])
    config = MediaConfig(**given)
    assert config.allowed_media_domains == ("a.example", "*.b.example")
    assert config.max_items("image") == 4
    assert config.max_items("video") == 1
    assert config.max_items("audio") == 32
