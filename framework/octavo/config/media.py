"""What media prompts may bring, and from where."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from octavo.config.checks import check_range
from octavo.errors import ConfigError
from octavo.wording import shown
from octavo_registry.modalities import MediaLimits

MAX_DECODE_THREADS: Final = 8
MEDIA_ROWS: Final = 16384
CROSS_ROWS: Final = 24576
BOUNDS: Final = ("count", "width", "height", "num_frames", "seconds")
"""What limit_mm_per_prompt may say of a plugin's own modality; a number alone is the count."""
BOUNDS_OF: Final = {
    "image": ("count", "width", "height"),
    "video": ("count", "width", "height", "num_frames"),
    "audio": ("count", "seconds"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """Images, videos, sounds and plugins' own kinds of media: limits, and what URLs may name."""

    allowed_media_domains: tuple[str, ...] = ()
    """A host that http(s) media may come from; several may be given; "*.example.com" is all below
    that one. None: such URLs are refused. Private addresses are refused in any case."""
    allowed_local_media_path: str | None = None
    """A folder that file:// media may come from; None: such URLs are refused."""
    media_fetch_timeout: float = 5.0
    """Seconds in which an item must arrive, once its host is looked up."""
    media_decode_timeout: float = 30.0
    """Seconds in which a request's items must be decoded."""
    media_threads: int | None = None
    """Items decoded at a time; None: as many as there are cores, up to 8."""
    limit_mm_per_prompt: dict[str, Any] = field(default_factory=dict)
    """Items of a request by modality, {"image": 4}, or with bounds of each item, {"video":
    {"count": 1, "num_frames": 32, "width": 1280, "height": 720}, "audio": {"seconds": 60}}. Width
    and height bound the area: they let 720 x 1280 in. Modalities are those of the plugins; 0 of one
    that the model does not take is no error."""
    max_media_items: int = 32
    """Most items of a request, all modalities together."""
    max_media_mib: float = 64.0
    """Encoded, all items of a request together."""
    max_decoded_media_mib: float = 2048.0
    """Decoded, all items of a request together."""
    max_image_megapixels: float = 89.0
    """Most megapixels of an image or a frame."""
    max_video_frames: int = 512
    """Most frames: those that a model sees of a video it samples; all of an animation."""
    max_audio_seconds: float = 600.0
    media_cache_tokens: int | None = None
    """Placeholder tokens whose media stay encoded on the device; an item that takes more is
    refused. None: 16384, and 24576 where layers read an encoder's output (Whisper): sixteen sounds
    of 30 seconds, which then are encoded together."""
    enable_mm_embeds: bool = False
    """Whether chats may bring rows that are encoded already: image_embeds and its like. For
    clients that are trusted: rows may be any numbers."""
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    """Entries of the model's processors in the place of its folder's: {"max_pixels": 501760}.
    What a request may set, for those that do not."""
    media_io_kwargs: dict[str, Any] = field(default_factory=dict)
    """How videos are sampled, {"video": {"num_frames": 32, "fps": 2}}, as vLLM has it."""
    language_model_only: bool = False
    """Take no media, whatever the model could: no item of any modality."""
    mm_processor_cache_gb: float = 4.0
    """Host memory for what processors made of media, so that what comes again is not read again."""

    def cached_rows(self, *, across: bool) -> int:
        """Rows of encoded media on the device; ``across``: layers read an encoder's output."""
        if self.media_cache_tokens is not None:
            return self.media_cache_tokens
        return CROSS_ROWS if across else MEDIA_ROWS

    def __post_init__(self) -> None:
        for domain in self.allowed_media_domains:
            _check_domain(domain)
        path = self.allowed_local_media_path
        if path is not None and not Path(path).is_absolute():
            raise ConfigError(f"allowed_local_media_path={path!r} must be an absolute path")
        if self.media_cache_tokens is not None:
            check_range("media_cache_tokens", self.media_cache_tokens, 1)
        check_range("mm_processor_cache_gb", self.mm_processor_cache_gb, 0)
        check_range("media_fetch_timeout", self.media_fetch_timeout, 1e-3, 600)
        check_range("media_decode_timeout", self.media_decode_timeout, 1e-3, 3600)
        if self.media_threads is not None:
            check_range("media_threads", self.media_threads, 1, 256)
        check_range("max_media_items", self.max_media_items, 0)
        check_range("max_media_mib", self.max_media_mib, 0)
        check_range("max_decoded_media_mib", self.max_decoded_media_mib, 0)
        check_range("max_image_megapixels", self.max_image_megapixels, 0, 178)  # Pillow has no more
        check_range("max_video_frames", self.max_video_frames, 0)
        check_range("max_audio_seconds", self.max_audio_seconds, 0)
        for modality, bounds in self.limit_mm_per_prompt.items():
            _check_bounds(modality, bounds)

    @property
    def num_threads(self) -> int:
        """Items decoded at a time."""
        return self.media_threads or min(os.cpu_count() or 1, MAX_DECODE_THREADS)

    def max_items(self, modality: str) -> int:
        """How many items of a modality a request may have."""
        if self.language_model_only:
            return 0
        return int(self._bounds(modality).get("count", self.max_media_items))

    def limits(
        self, modality: str, *, deadline: float, reserve: Callable[[int], None]
    ) -> MediaLimits:
        """Return the bounds of one item."""
        bounds = self._bounds(modality)
        max_pixels = int(self.max_image_megapixels * 1e6)
        if "width" in bounds:
            max_pixels = min(max_pixels, bounds["width"] * bounds["height"])
        return MediaLimits(
            max_pixels=max_pixels,
            max_frames=min(self.max_video_frames, bounds.get("num_frames", self.max_video_frames)),
            max_animation_frames=self.max_video_frames,
            max_seconds=min(self.max_audio_seconds, bounds.get("seconds", self.max_audio_seconds)),
            deadline=deadline,
            reserve=reserve,
        )

    def _bounds(self, modality: str) -> dict[str, Any]:
        bounds = self.limit_mm_per_prompt.get(modality, {})
        return bounds if isinstance(bounds, dict) else {"count": bounds}


def _check_domain(domain: str) -> None:
    plain = domain.removeprefix("*.")
    if not plain or not plain.isascii() or set(plain) & set("*/:@? ") or plain.strip(".") != plain:
        raise ConfigError(
            f"allowed_media_domains={domain!r} must be a host's name, such as example.com or "
            "*.example.com"
        )


def _check_bounds(modality: str, bounds: object) -> None:
    name = f"limit_mm_per_prompt[{modality!r}]"
    known = BOUNDS_OF.get(modality, BOUNDS)
    if not isinstance(bounds, dict):
        bounds = {"count": bounds}
    for key, value in bounds.items():
        if key not in known:
            raise ConfigError(f"{name} has no bound {shown(key)}; known: {', '.join(known)}")
        whole = isinstance(value, int) or key == "seconds"
        if not whole:
            raise ConfigError(f"{name}[{key!r}]={shown(value)} must be a whole number")
        check_range(f"{name}[{key!r}]", value, 0 if key in ("count", "seconds") else 1)
    if ("width" in bounds) != ("height" in bounds):
        raise ConfigError(f"{name} has one of width and height; give both or none")
