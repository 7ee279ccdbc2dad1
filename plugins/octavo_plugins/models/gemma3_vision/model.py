"""Gemma 3 with images: SigLIP's patches, averaged by squares, stand in the place of tokens.

Axis suffixes: N images, C channels, H rows, W columns, P patches, D hidden, V hidden of the tower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.loading import load_weights
from octavo.layers.norm import RMSNorm
from octavo.layers.vision import Parameter, VisionTransformer, pixels_of, text_spec, tower_spec
from octavo_plugins.models.gemma2.model import with_whole_norms
from octavo_plugins.models.gemma3.model import Gemma3
from octavo_registry.model import ModelSpec

PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("vision_tower.vision_model.", "vision_tower."),
)
"""Prefixes of checkpoints that Transformers has written at different times, and ours."""


class Gemma3Vision(Gemma3):
    """Gemma3ForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        tied = config.get("tie_word_embeddings", True)
        text = {**config["text_config"], "tie_word_embeddings": tied}
        super().__init__(text_spec(spec, text))
        vision = tower_spec(spec, config["vision_config"])
        self.vision_tower = VisionTransformer(
            "vision_tower",
            vision,
            class_token=False,
            num_layers=vision.config["num_hidden_layers"],
            final_norm=True,
        )
        self.projector = Projector("multi_modal_projector", vision, text["hidden_size"], config)
        self.media_row_size = text["hidden_size"]
        self._widest = 4 * self.projector.patches_per_row * vision.config["intermediate_size"]
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all images, which are of one size, at once."""
        pixels_NCHW = torch.cat([pixels_of(item, self._dtype) for item in items])
        rows_NPD = self.projector(self.vision_tower(pixels_NCHW)[-1])
        return list(rows_NPD)

    def encode_bytes(self, num_rows: int) -> int:
        """Queries, keys, values, and what is inside the feed-forward layer, for each patch."""
        num_bytes: int = num_rows * self._widest * self._dtype.itemsize
        return num_bytes

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters, whatever version of Transformers has written them."""
        return load_weights(self, _checkpoint(tensors), ignore=self.is_not_needed)

    def is_not_needed(self, name: str) -> bool:
        """SigLIP's head, which some checkpoints have."""
        return name.startswith("vision_tower.head.") or super().is_not_needed(name)


class Projector(nn.Module):
    """The mean of each square of patches, normalised, in the language model's size."""

    def __init__(
        self, name: str, spec: ModelSpec, hidden: int, config: Mapping[str, object]
    ) -> None:
        super().__init__()
        vision = spec.config
        inner = vision["hidden_size"]
        shape = (inner, hidden)
        self.weight = Parameter(f"{name}.mm_input_projection_weight", shape, spec)
        eps = float(vision.get("layer_norm_eps", 1e-6))
        self.norm = RMSNorm(f"{name}.mm_soft_emb_norm", inner, eps, spec=spec)
        num_rows = int(str(config.get("mm_tokens_per_image", 256)))
        self._side = vision["image_size"] // vision["patch_size"]
        self._pooled = self._side // round(num_rows**0.5)
        self.patches_per_row = self._pooled**2

    def forward(self, x_NPV: Tensor) -> Tensor:
        """Rows [N, P, D]."""
        x_NVHW = x_NPV.mT.unflatten(2, (self._side, self._side))
        x_NPV = F.avg_pool2d(x_NVHW, self._pooled).flatten(2).mT.contiguous()
        shape = x_NPV.shape
        normed_NPV: Tensor = self.norm(x_NPV.flatten(0, 1)).view(shape)
        return normed_NPV @ self.weight.weight


def _checkpoint(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Under our names; the tower's norms are whole already, and Gemma's are not."""
    for name, tensor in tensors:
        for prefix, ours in PREFIXES:
            if name.startswith(prefix):
                name = ours + name.removeprefix(prefix)
        is_whole = name.startswith("vision_tower.")
        yield from [(name, tensor)] if is_whole else with_whole_norms([(name, tensor)])
