"""What models share that put a tower in front of a language model of some kind.

Axis suffixes: N images, P patches, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.attention import head_dim_of
from octavo.layers.decoder import CausalLM
from octavo.layers.language_model import with_defaults
from octavo.layers.linear import ReplicatedLinear
from octavo.layers.loading import load_weights, renamed
from octavo.layers.rotary import RotaryEmbedding
from octavo.layers.vision import VisionTransformer, activation_of, pixels_of, text_spec, tower_spec
from octavo_plugins.models.llama.model import decoder_layer as llama_layer
from octavo_plugins.models.mistral.model import decoder_layer as mistral_layer
from octavo_plugins.models.qwen2.model import decoder_layer as qwen2_layer
from octavo_plugins.models.qwen3.model import decoder_layer as qwen3_layer
from octavo_registry.model import ModelSpec

LAYERS: Mapping[str, Callable[[ModelSpec, int], nn.Module]] = {
    "llama": llama_layer,
    "mistral": mistral_layer,
    "qwen2": qwen2_layer,
    "qwen3": qwen3_layer,
}
"""How a layer is made, by the ``model_type`` of a text_config."""
PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.vision_tower.", "vision_tower."),
    ("model.audio_tower.", "audio_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.image_newline", "image_newline"),
)
"""Prefixes of checkpoints of Transformers, of different times, and ours. (The one with two
``model.`` is how 5.17 saves models that hear.)"""


class WrappedLanguageModel(CausalLM):
    """The language model that ``text_config`` describes; subclasses add ``encode``."""

    def __init__(self, spec: ModelSpec, *, tied: bool = False) -> None:
        config = spec.config
        text = text_spec(spec, {"model_type": "llama", **config["text_config"]})
        kind = text.config["model_type"]
        if kind not in LAYERS:
            raise ModelError(
                f"model_type={kind!r} of text_config is none of {', '.join(LAYERS)}, the language "
                f"models that {spec.architecture} may have"
            )
        if kind == "mistral":
            text = with_defaults(text, sliding_window=4096)
        tied = config.get("tie_word_embeddings", text.config.get("tie_word_embeddings", tied))
        text = text_spec(text, {**text.config, "tie_word_embeddings": tied})
        rotary = RotaryEmbedding(head_dim_of(text.config), spec=text)
        super().__init__(text, LAYERS[kind], rotary)
        self.media_row_size: int = text.config["hidden_size"]
        self._dtype = spec.dtype

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters, whatever version of Transformers has written them."""
        return load_weights(self, _renamed(tensors), ignore=self._is_left_out)

    def _is_left_out(self, name: str) -> bool:
        """Layers of the tower beyond those that are used, and its pooling."""
        return name.startswith("vision_tower.") or self.is_not_needed(name)


class VisionLanguageModel(WrappedLanguageModel):
    """One that takes images."""

    def pixels_of(self, items: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """All items' images of one size, one behind the other, as the encoder takes them."""
        return torch.cat([pixels_of(each, self._dtype) for each in items])


def _renamed(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in renamed(tensors, PREFIXES):
        yield name.replace("vision_tower.vision_model.", "vision_tower.", 1), tensor


def chosen_layers(config: Mapping[str, Any], num_layers: int, default: int) -> list[int]:
    """Which hidden states go to the language model; 0 is the one before all layers."""
    chosen = config.get("vision_feature_layer", default)
    states = range(num_layers + 1)
    return [states[each] for each in (chosen if isinstance(chosen, list) else [chosen])]


class FeatureTower(nn.Module):
    """Hidden states of CLIP or SigLIP, of the layers that a config chooses, side by side."""

    def __init__(self, spec: ModelSpec, *, layer: int, strategy: str) -> None:
        super().__init__()
        vision = tower_spec(spec, spec.config["vision_config"])
        self._layers = chosen_layers(spec.config, vision.config["num_hidden_layers"], layer)
        self.has_class = is_clip = (
            vision.config.get("model_type", "clip_vision_model") == "clip_vision_model"
        )
        self.drops_first = drops_first(spec.config, strategy)
        if self.drops_first and not is_clip:
            raise ModelError(
                "vision_feature_select_strategy='default' drops the class token, and a "
                f"{vision.config['model_type']} has none; it must be 'full'"
            )
        self.tower = VisionTransformer(
            "vision_tower",
            vision,
            class_token=is_clip,
            num_layers=max(self._layers),
            final_norm=False,
        )
        self.size = vision.config["hidden_size"] * len(self._layers)
        self.side = side_of(vision.config)
        """Patches in a row."""
        self.bytes_per_patch = patch_bytes(vision)

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        """Patches [N, P, D]."""
        x_NPD = torch.cat(self.tower(pixels_NCHW, self._layers), dim=-1)
        return x_NPD[:, 1:] if self.drops_first else x_NPD


def drops_first(config: Mapping[str, Any], default: str) -> bool:
    """Whether the class token stays out."""
    return bool(config.get("vision_feature_select_strategy", default) == "default")


def side_of(vision: Mapping[str, Any]) -> int:
    """Patches in a row of a square image."""
    return int(vision["image_size"]) // int(vision["patch_size"])


def patch_bytes(vision: ModelSpec) -> int:
    """What a layer holds for a patch: queries, keys, values, what is inside its widest product."""
    config = vision.config
    entries: int = 4 * config["hidden_size"] + 4 * config["intermediate_size"]
    return entries * vision.dtype.itemsize


class Projector(nn.Module):
    """Two products from patches to the language model's hidden state."""

    def __init__(self, spec: ModelSpec, inputs: int, hidden: int, *, bias: bool = True) -> None:
        super().__init__()
        name = "multi_modal_projector"
        vision = tower_spec(spec, {"hidden_act": spec.config.get("projector_hidden_act", "gelu")})
        bias = spec.config.get("multimodal_projector_bias", bias)
        self._activation = activation_of(vision.config, "gelu")
        self.linear_1 = ReplicatedLinear(f"{name}.linear_1", inputs, hidden, bias=bias, spec=vision)
        self.linear_2 = ReplicatedLinear(f"{name}.linear_2", hidden, hidden, bias=bias, spec=vision)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the language model."""
        rows: Tensor = self.linear_2(self.linear_1.activated(x, self._activation))
        return rows
