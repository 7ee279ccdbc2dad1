"""Pixtral and Mistral 3: images of any size stand in prompts row by row.

Axis suffixes: P patches, D hidden, M merged squares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.norm import RMSNorm
from octavo.layers.vision import pixels_of, tower_spec
from octavo_plugins.models.llava.language import (
    Projector,
    VisionLanguageModel,
    chosen_layers,
    patch_bytes,
)
from octavo_plugins.models.pixtral.vision import DEFAULTS, Grid, PixtralEncoder
from octavo_registry.model import ModelSpec


class Pixtral(VisionLanguageModel):
    """LlavaForConditionalGeneration with a tower of the model type pixtral."""

    def __init__(
        self, spec: ModelSpec, *, layer: int = -2, bias: bool = True, tied: bool = False
    ) -> None:
        super().__init__(spec, tied=tied)
        vision = tower_spec(spec, {**DEFAULTS, **spec.config["vision_config"]})
        layers = chosen_layers(spec.config, vision.config["num_hidden_layers"], layer)
        self.tower = PixtralEncoder("vision_tower", vision, layers)
        size = vision.config["hidden_size"] * len(layers)
        self.projector = Projector(spec, size, self.media_row_size, bias=bias)
        self._bytes_per_patch = patch_bytes(vision)
        self._merge = 1

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All images in one pass over their patches."""
        images = [pixels_of(each, self._dtype) for each in items]
        grids = [self.tower.grid_of(each) for each in images]
        rows_MD: Tensor = self.projector(self.merged(self.tower(images), grids))
        per_row = self._merge**2
        counts = [height * width // per_row for height, width in grids]
        return torch.split(rows_MD, counts)

    def merged(self, x_PD: Tensor, grids: Sequence[Grid]) -> Tensor:
        """What is projected."""
        return x_PD

    def encode_bytes(self, num_rows: int) -> int:
        """What the tower holds for the patches of so many rows."""
        return num_rows * self._merge**2 * self._bytes_per_patch


class Mistral3(Pixtral):
    """Mistral3ForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, layer=-1, bias=False, tied=True)
        self._merge = int(spec.config.get("spatial_merge_size", 2))
        vision = tower_spec(spec, {**DEFAULTS, **spec.config["vision_config"]})
        eps = float(spec.config["text_config"].get("rms_norm_eps", 1e-5))
        self.merger = PatchMerger("multi_modal_projector", vision, self._merge, eps)

    def merged(self, x_PD: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Squares [M, D] of neighbouring patches."""
        merged_MD: Tensor = self.merger(x_PD, grids)
        return merged_MD


class PatchMerger(nn.Module):
    """A norm, and a product over all patches of a square."""

    def __init__(self, name: str, vision: ModelSpec, merge: int, eps: float) -> None:
        super().__init__()
        hidden = vision.config["hidden_size"]
        self._merge = merge
        self.norm = RMSNorm(f"{name}.norm", hidden, eps, spec=vision)
        self.merging_layer = ReplicatedLinear(
            f"{name}.patch_merger.merging_layer",
            hidden * merge**2,
            hidden,
            bias=False,
            spec=vision,
        )

    def forward(self, x_PD: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Squares [M, D] of all images, row by row."""
        merge = self._merge
        normed = self.norm(x_PD).split([height * width for height, width in grids])
        squares = [
            # A square's entries are sorted by patch within each entry of the hidden state.
            each.view(height // merge, merge, width // merge, merge, -1)
            .permute(0, 2, 4, 1, 3)
            .flatten(2)
            .flatten(0, 1)
            for each, (height, width) in zip(normed, grids, strict=True)
        ]
        merged_MD: Tensor = self.merging_layer(torch.cat(squares))
        return merged_MD
