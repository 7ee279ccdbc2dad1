"""LLaVA 1.5: CLIP's patches behind two products stand where a prompt has an image.

Axis suffixes: N images, C channels, H rows, W columns, P patches, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.loading import load_weights
from octavo.layers.vision import VisionTransformer, normalised, tower_spec
from octavo_plugins.models.llama.model import Llama
from octavo_plugins.models.llava.inputs import MEAN, STD
from octavo_registry.model import ModelSpec

PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)
"""Of checkpoints that Transformers has written at different times, and ours."""


class Llava(Llama):
    """LlavaForConditionalGeneration around a Llama."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        text = tower_spec(spec, {"tie_word_embeddings": False, **config["text_config"]})
        super().__init__(text)
        vision = tower_spec(spec, config["vision_config"])
        self._feature_layer = config.get("vision_feature_layer", -2)
        layers = vision.config["num_hidden_layers"]
        num_layers = self._feature_layer + (layers + 1 if self._feature_layer < 0 else 0)
        self.vision_tower = VisionTransformer(
            "vision_tower",
            vision,
            class_token=True,
            num_layers=num_layers,
            final_norm=False,
        )
        self._drops_class = config.get("vision_feature_select_strategy", "default") == "default"
        bias = config.get("multimodal_projector_bias", True)
        hidden = text.config["hidden_size"]
        self.linear_1 = ReplicatedLinear(
            "multi_modal_projector.linear_1",
            vision.config["hidden_size"],
            hidden,
            bias=bias,
            spec=vision,
        )
        self.linear_2 = ReplicatedLinear(
            "multi_modal_projector.linear_2", hidden, hidden, bias=bias, spec=vision
        )
        self.media_row_size = hidden
        device = spec.device
        self._mean_C11 = torch.tensor(MEAN, device=device).view(-1, 1, 1)
        self._std_C11 = torch.tensor(STD, device=device).view(-1, 1, 1)
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all images, which are of one size, at once."""
        pixels_NCHW = torch.stack([item["pixels"] for item in items])
        pixels_NCHW = normalised(pixels_NCHW, self._mean_C11, self._std_C11, self._dtype)
        x_NPD = self.vision_tower(pixels_NCHW)[-1]
        if self._drops_class:
            x_NPD = x_NPD[:, 1:]
        rows_NPD: Tensor = self.linear_2(F.gelu(self.linear_1(x_NPD)))
        return list(rows_NPD)

    def encode_bytes(self, num_rows: int) -> int:
        """Queries, keys, values, and what is inside the widest feed-forward layer."""
        config = self.vision_tower.layers[0].fc1
        return num_rows * 8 * config.out_features * self._dtype.itemsize

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters, whatever version of Transformers has written them."""
        return load_weights(self, _renamed(tensors), ignore=self._is_left_out)

    def _is_left_out(self, name: str) -> bool:
        return name.startswith("vision_tower.") or self.is_not_needed(name)


def _renamed(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        for prefix, ours in PREFIXES:
            if name.startswith(prefix):
                name = ours + name.removeprefix(prefix)
                break
        yield name, tensor
