"""Media in prompts: decoding bytes, placing placeholder tokens, making a model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from octavo_registry.errors import OctavoError
from octavo_registry.lazy import LazyRegistry
from octavo_registry.model import Modality

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Bounds that a decoder must check from headers, before it allocates."""

    max_pixels: int
    """Of one image or frame."""
    max_frames: int
    max_samples: int
    """Of one audio item, all channels together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One decoded image, video or audio item of a prompt."""

    modality: Modality
    value: Any
    """What the modality's decoder gave, or what the user passed to ``LLM``."""
    content_hash: str
    """SHA-256 of the encoded bytes or of the value; part of the prefix cache's key."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """What ``map_input`` made of it; an input processor goes by these alone, for the value of an
    item that was here before is not decoded again."""


@runtime_checkable
class ModalityDecoder(Protocol):
    """Turns bytes into a decoded item. Made without arguments, once a process."""

    def decode(self, data: bytes, limits: MediaLimits) -> Any:
        """Return the decoded value; raise an OctavoError for damaged data or a limit exceeded."""
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
    """Of all tokens by axis, for a model with ``position_axes``; None: their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSettings:
    """What an architecture's functions for media go by."""

    config: Mapping[str, Any]
    """The model's config.json."""
    processors: Mapping[str, Mapping[str, Any]]
    """By modality, what the model's folder says of its processor, with ``mm_processor_kwargs``."""
    token_ids: Mapping[str, int] = field(default_factory=dict)
    """Of the tokens that were added to the tokenizer's own, as those around an image."""
    encode_text: Callable[[str], Sequence[int]] | None = None
    """Ids of a text, without special tokens around it; None: the engine has no tokenizer."""

    def text_ids(self, text: str) -> list[int]:
        """Those of a text that belongs to an item; an error without a tokenizer."""
        if self.encode_text is None:
            raise OctavoError(
                f"a media item stands in the prompt with the text {text!r}, which needs a "
                "tokenizer; do not set skip_tokenizer_init"
            )
        return list(self.encode_text(text))

    def token_id(self, token: str) -> int:
        """An added token's; an error where the model's folder has none of that name."""
        if token not in self.token_ids:
            raise OctavoError(
                f"the tokenizer files of the model have no token {token!r}, which its media need"
            )
        return self.token_ids[token]

    def entry(self, modality: str, name: str, default: Any) -> Any:
        """An entry of a modality's processor, or the default."""
        value = self.processors.get(modality, {}).get(name)
        return default if value is None else value


class InputRegistry(LazyRegistry[MediaPrompt]):
    """Input processors by architecture: functions ``(prompt, settings) -> MediaPrompt``."""

    def process_input(
        self, architecture: str, prompt: MediaPrompt, settings: MediaSettings
    ) -> MediaPrompt:
        """Place the placeholder tokens of a prompt's media; one without media stays as it is.

        Called by the framework once a request.
        """
        if not prompt.media:
            return prompt
        if architecture not in self:
            raise OctavoError(
                f"{architecture} takes no {prompt.media[0].modality}; send text only, or choose a "
                f"model with that input"
            )
        process = self.load(architecture)
        plugin = self.info(architecture).plugin
        with self.faults.guard(plugin, f"input processor of {architecture}", request=True):
            return process(prompt, settings)


class MultimodalRegistry(LazyRegistry[Mapping[str, "Tensor"]]):
    """Maps by architecture: functions ``(modality, item, settings) -> tensors by name``."""

    def map_input(
        self, modality: Modality, item: MediaItem, *, architecture: str, settings: MediaSettings
    ) -> Mapping[str, Tensor]:
        """Return the tensors that the model's ``encode`` takes for one item.

        Called by the framework once an item, off the step loop, unless the processor cache has it.
        """
        to_tensors = self.load(architecture)
        plugin = self.info(architecture).plugin
        with self.faults.guard(plugin, f"multimodal map of {architecture}", request=True):
            return to_tensors(modality, item, settings)
