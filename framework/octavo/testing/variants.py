"""The configurations of an architecture that the conformance kit tries; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.errors import PluginError
from octavo_registry import ModelCapabilities
from octavo_registry.lazy import load_target

EPSILON: Final = 0.05
"""Epsilon of norms: so large that results tell it from any that a model may have instead."""
TINY: Final[Mapping[str, Any]] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": EPSILON,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""config.json of the kit's models; a Transformers class gets those entries that it knows."""
TINY_WINDOW = 20
"""Replaces a window that a Transformers class has by default, which no prompt here would fill."""

TINY_TEXT: Final[Mapping[str, Any]] = {
    **{name: TINY[name] for name in TINY if not name.endswith("_token_id")},
    "max_position_embeddings": 1024,
}
"""A ``text_config`` of a model that takes media, with room for them."""
TINY_VISION: Final[Mapping[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
}
"""A ``vision_config`` of CLIP's kind: 16 patches."""

SwitchOff = Mapping[str, Any] | Callable[[Any], None]
"""Overrides of config.json, or a function that changes the model once its weights are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaExample:
    """What the kit needs to try one modality of a model."""

    tokens: tuple[int, ...]
    """What stands for an item in a prompt, as a chat template writes it; () where nothing does."""
    make: Callable[[int, int], Any]
    """``(shape, seed) -> item``, as a user of ``LLM`` gives it: equal shapes are of one size and
    kind, other seeds of other content. See ``octavo.testing.media_items``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One configuration to try. A plugin's ``conformance`` target is a dict of them by name."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Entries of config.json that differ from the kit's tiny ones, or are added to them."""
    reference: str | None = None
    """Target of another reference than the one in ``ModelCapabilities``."""
    architecture: str | None = None
    """In config.json, where the model runs others than that of its name."""
    without: Mapping[str, SwitchOff] = field(default_factory=dict)
    """What switches off each mechanism of the architecture's own, by name ("query norm"); the kit
    must notice that it is missing."""
    media: Mapping[str, MediaExample] = field(default_factory=dict)
    """Examples by modality, for a model that takes media."""
    one_item: bool = False
    """Every prompt has exactly one item, as where all layers read it by cross attention. The
    reference is then called with the token ids [B, T] and a list of each sequence's item."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further JSON files of the model's folder, such as preprocessor_config.json."""


def is_epsilon(name: str, value: object) -> bool:
    """Whether an entry of config.json is what norms add to a variance."""
    return name.endswith(("_eps", "_epsilon")) and isinstance(value, float)


def variants_of(capabilities: ModelCapabilities) -> Mapping[str, Variant]:
    """The plugin's variants, or the tiny config as it is."""
    if capabilities.conformance is None:
        return {"tiny": Variant()}
    variants = load_target(capabilities.conformance)
    if not isinstance(variants, Mapping) or not variants:
        raise PluginError(
            f"conformance={capabilities.conformance!r} must be a dict of "
            f"octavo.testing.variants.Variant by name, not {variants!r}"
        )
    return variants
