"""InternVL: squares of patches become rows of a Qwen2, Qwen3 or Llama.

Axis suffixes: N tiles, P patches, D hidden, M merged squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.norm import LayerNorm
from octavo.layers.vision import tower_spec
from octavo_plugins.models.internvl.vision import DEFAULTS, InternViT
from octavo_plugins.models.llava.language import (
    Projector,
    VisionLanguageModel,
    chosen_layers,
    patch_bytes,
)
from octavo_registry.model import ModelSpec


class InternVL(VisionLanguageModel):
    """InternVLForConditionalGeneration in the format of Transformers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, tied=True)
        config = spec.config
        vision = tower_spec(spec, {**DEFAULTS, **config["vision_config"]})
        (layer,) = chosen_layers(config, vision.config["num_hidden_layers"], -1)
        if config.get("vision_feature_select_strategy", "default") != "default":
            raise ModelError("vision_feature_select_strategy must be 'default' for InternVL")
        self.tower = InternViT("vision_tower", vision, layer)
        self._merge = int(1 / config.get("downsample_ratio", 0.5))
        size = vision.config["hidden_size"] * self._merge**2
        self.norm = LayerNorm("multi_modal_projector.layer_norm", size, 1e-5, spec=vision)
        self.projector = Projector(spec, size, self.media_row_size)
        self._bytes_per_patch = patch_bytes(vision)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All tiles of all items in one pass."""
        x_NPD = self.tower(self.pixels_of(items))[:, 1:]
        merge, (height, width) = self._merge, self.tower.grid
        squares = x_NPD.unflatten(1, (height // merge, merge, width // merge, merge))
        merged_NMD = squares.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
        rows_NMD = self.projector(self.norm(merged_NMD))
        counts = [len(each["pixels"]) for each in items]
        return [each.flatten(0, 1) for each in rows_NMD.split(counts)]

    def encode_bytes(self, num_rows: int) -> int:
        """What the tower holds for the patches of so many rows."""
        return num_rows * self._merge**2 * self._bytes_per_patch
