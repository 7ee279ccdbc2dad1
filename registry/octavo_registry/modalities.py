"""Media in prompts: decoding bytes, placing placeholder tokens, making a model's tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from octavo_registry.errors import OctavoError, PluginError
from octavo_registry.lazy import LazyRegistry, load_target

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


ROWS: Final = "rows"
"""A tensor of this name among an item's [rows, row size] is the item as the model's ``encode``
would make it, which is not asked then."""
FRAME_KWARGS: Final[Mapping[str, Any]] = {"num_frames": (1, 512), "fps": (0.01, 60.0)}
"""What a request may say of a video's frames, for a model that samples them."""


class MediaError(OctavoError):
    """Media that cannot be used: damaged, cut, or of another kind; the message says which."""


class MediaLimitError(MediaError):
    """Media above a limit; the message has the value and the limit."""


def _unbounded(num_bytes: int) -> None:
    """Grant any amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Bounds of one item, checked from headers before memory is taken and again while decoding.

    Each ``check`` raises a MediaLimitError.
    """

    max_pixels: int
    """Pixels of one image or frame."""
    max_frames: int
    """Frames of a video, once sampled."""
    max_seconds: float
    """Length of a sound."""
    max_animation_frames: int = 512
    """Frames of a GIF or another picture that moves: each is drawn on the one before."""
    deadline: float = math.inf
    """The ``time.monotonic()`` at which decoding gives up."""
    reserve: Callable[[int], None] = _unbounded
    """Called with the bytes that a decoded value is about to take; a MediaLimitError if its request
    may have no more."""

    def check_pixels(self, width: int, height: int) -> None:
        """Check the size of an image or frame."""
        if width * height > self.max_pixels:
            raise MediaLimitError(
                f"{width} x {height} is {width * height:,} pixels; at most {self.max_pixels:,}"
            )

    def check_frames(self, num_frames: int) -> None:
        """Check how many frames are to be decoded."""
        if num_frames > self.max_frames:
            raise MediaLimitError(
                f"{num_frames:,} frames; at most {self.max_frames:,}: sample fewer"
            )

    def check_animation(self, num_frames: int) -> None:
        """Check how many frames an animation has."""
        if num_frames > self.max_animation_frames:
            raise MediaLimitError(
                f"it is an animation of more than {self.max_animation_frames:,} frames, all of "
                "which count; send fewer"
            )

    def check_seconds(self, seconds: float) -> None:
        """Check how long a sound is."""
        if seconds > self.max_seconds:
            raise MediaLimitError(f"{seconds:,.1f} seconds; at most {self.max_seconds:,.1f}")

    def check_time(self) -> None:
        """Check the clock; called between frames or chunks, so that no item holds a thread."""
        if time.monotonic() > self.deadline:
            raise MediaLimitError("decoding takes too long; send a smaller file")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoClip:
    """The decoded value of a video."""

    frames: NDArray[np.uint8]
    """[frames, height, width, 3], RGB, upright."""
    timestamps: tuple[float, ...] | None = None
    """Seconds since the video's first frame, one for each of ``frames``; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioClip:
    """The decoded value of a sound."""

    samples: NDArray[np.float32]
    """[samples], mono, about -1 to 1."""
    rate: int
    """Samples per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One decoded item of a prompt."""

    modality: str
    """A name in ``host.modalities``: "image", "video", "audio", or a plugin's own."""
    value: Any
    """What the modality's decoder returned; an RGB ``PIL.Image.Image`` for "image", a VideoClip,
    an AudioClip. None: it was not decoded, as what is made of it is kept under its hash."""
    content_hash: str
    """SHA-256 in hex over the modality, the decoder's options and the encoded bytes (or the
    value's); part of the prefix cache's key."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What ``map_input`` made of it; an input processor goes by these alone, for the value of an
    item that was here before is not decoded again."""


@runtime_checkable
class ModalityDecoder(Protocol):
    """Makes the decoded value of one modality. Made without arguments, once a process.

    It is called from several threads at a time. Its errors for data that it cannot take are
    MediaErrors. ``options`` are the model's: "image" has none, "video" those of the sampling of
    frames, "audio" the ``rate`` that it is resampled to.
    """

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> Any:
        """Return the value of an encoded item; ``data`` is not empty."""
        ...

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> Any:
        """Return the value of an item that a user of ``LLM`` gave as an object, not as bytes.

        It may share memory with ``given``.
        """
        ...

    def is_item(self, given: Sequence[Any]) -> bool:
        """Whether a list or tuple, which is not empty, is one item (the frames of a video).

        False: each of its elements is an item.
        """
        ...

    def content(self, value: Any) -> Iterable[bytes | memoryview]:
        """Return the bytes that tell a decoded value from all others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """A run of prompt tokens that an item's rows replace; it reserves cache like other tokens."""

    item: int
    """Index into ``MediaPrompt.media``."""
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPrompt:
    """A tokenized prompt with its media; an input processor adds tokens and placeholders."""

    token_ids: Sequence[int]
    media: Sequence[MediaItem] = ()
    placeholders: Sequence[Placeholder] = ()
    positions_AP: NDArray[np.int32] | None = None
    """Positions of all tokens by axis, for a model with ``position_axes``; None: their numbers."""
    cross_rows: int = 0
    """Rows of the prompt's one item that cross attention reads, instead of placeholders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """What an architecture's functions for media go by."""

    config: Mapping[str, Any]
    """The model's config.json."""
    processors: Mapping[str, Mapping[str, Any]]
    """What the model's folder says of a modality's processor, with ``mm_processor_kwargs``."""
    token_ids: Mapping[str, int] = field(default_factory=dict)
    """Ids of tokens that were added to the tokenizer's own, as those around an image."""
    encode_text: Callable[[str], Sequence[int]] | None = None
    """Ids of a text, without special tokens around it; None: the engine has no tokenizer."""

    def text_ids(self, text: str) -> list[int]:
        """Token ids of a text that belongs to an item; an error without a tokenizer."""
        if self.encode_text is None:
            raise PluginError(
                f"a media item stands in the prompt with the text {text!r}, which needs a "
                "tokenizer; do not set skip_tokenizer_init"
            )
        return list(self.encode_text(text))

    def token_id(self, token: str) -> int:
        """An added token's; an error where the model's folder has none of that name."""
        if token not in self.token_ids:
            raise PluginError(
                f"the tokenizer files of the model have no token {token!r}, which its media need"
            )
        return self.token_ids[token]

    def entry(self, modality: str, name: str, default: Any) -> Any:
        """An entry of a modality's processor, or the default."""
        value = self.processors.get(modality, {}).get(name)
        return default if value is None else value


class InputRegistry(LazyRegistry[MediaPrompt]):
    """Input processors by architecture: functions ``(prompt, settings) -> MediaPrompt``.

    ``texts`` are, by modality, what stands for an item in a chat template that takes text alone.
    ``marks`` are texts that stand for items and are no tokens of the tokenizer: a text is cut
    there, and each becomes an id behind the vocabulary, ``settings.token_ids[text]``.
    ``special_tokens`` False: a prompt is tokenized as it stands, for it has its own.
    """

    def process_input(
        self, architecture: str, prompt: MediaPrompt, settings: MediaSettings
    ) -> MediaPrompt:
        """Place the placeholder tokens of a prompt's media.

        Called by the framework once a request that has media, and for text without any, which is to
        be refused if it has places for some.
        """
        if architecture not in self:
            if not prompt.media:
                return prompt
            raise OctavoError(
                f"{architecture} takes no {prompt.media[0].modality}; send text only, or choose a "
                f"model with that input"
            )
        process = self.bind(architecture, self.load(architecture))
        with self.guard(architecture, f"input processor of {architecture}"):
            placed = process(prompt, settings)
            if not isinstance(placed, MediaPrompt):
                raise TypeError(f"it returned {type(placed).__name__}, not a MediaPrompt")
            return placed


class MultimodalRegistry(LazyRegistry[Mapping[str, "Tensor"]]):
    """Maps by architecture: functions ``(modality, item, settings) -> tensors by name``.

    ``options`` may name a function ``(modality, settings) -> dict``: what the modality's decoder is
    to do for this model, such as how many frames of a video it gives. ``kwargs`` are the entries of
    processors that a user or a request may set, by name: the least and the most, two integers or
    two floats; such names again; or the entry that it is another name of. All of them change
    something: where models of an architecture differ in that, ``kwargs_of`` names a function
    ``(config) -> kwargs``. ``rows`` may name a function ``(modality, tensors, settings) -> tensors
    by name``, for items that come encoded: it checks what is given and returns ``ROWS``, and what
    else the input processor goes by.
    """

    def kwargs(self, architecture: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what may be set of the processors of a model; called when it is opened."""
        if architecture not in self:
            return {}
        entry = self.info(architecture)
        known: Mapping[str, Any] = entry.metadata["kwargs"]
        if entry.metadata["kwargs_of"]:
            with self.faults.guard(entry.plugin, f"mm_processor_kwargs of {architecture}"):
                known = self._call(architecture, "kwargs_of", config)
        return known

    def decode_options(
        self, modality: str, *, architecture: str, settings: MediaSettings
    ) -> Mapping[str, Any]:
        """Return what the modality's decoder is to do; called once a request by the framework."""
        entry = self.info(architecture)
        if not entry.metadata["options"]:
            return {}
        with self.faults.guard(entry.plugin, f"media options of {architecture}", request=True):
            return self._call(architecture, "options", modality, settings)

    def map_rows(
        self,
        modality: str,
        tensors: Mapping[str, Tensor],
        *,
        architecture: str,
        settings: MediaSettings,
    ) -> Mapping[str, Tensor]:
        """Return the tensors of an item that came encoded; called as ``map_input`` is."""
        entry = self.info(architecture)
        with self.faults.guard(entry.plugin, f"given rows of {architecture}", request=True):
            return self._call(architecture, "rows", modality, tensors, settings)

    def map_input(
        self, modality: str, item: MediaItem, *, architecture: str, settings: MediaSettings
    ) -> Mapping[str, Tensor]:
        """Return the tensors that the model's ``encode`` takes for one item.

        Called by the framework once an item, off the step loop, unless the processor cache has it.
        """
        to_tensors = self.bind(architecture, self.load(architecture))
        with self.guard(architecture, f"multimodal map of {architecture}"):
            return _checked_mapping(to_tensors(modality, item, settings))

    def _call(self, architecture: str, function: str, *args: Any) -> Mapping[str, Any]:
        """Call one of an entry's further functions."""
        target = load_target(self.info(architecture).metadata[function])
        return _checked_mapping(self.bind(architecture, target)(*args))


def _checked_mapping(made: object) -> Mapping[str, Any]:
    if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
        raise TypeError(f"it returned {type(made).__name__}, not a mapping by name")
    return made
