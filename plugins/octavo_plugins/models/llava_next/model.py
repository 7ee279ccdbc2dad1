"""LLaVA-NeXT: patches of the whole image, then those of all tiles in the order of the picture.

Axis suffixes: N tiles, P patches, D hidden, R rows and C columns of patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.vision import Parameter, tower_spec
from octavo_plugins.models.llava.language import FeatureTower, Projector, VisionLanguageModel
from octavo_registry.model import ModelSpec


class LlavaNext(VisionLanguageModel):
    """LlavaNextForConditionalGeneration; others have another tower or fewer rows."""

    def __init__(self, spec: ModelSpec, *, layer: int = -2, strategy: str = "default") -> None:
        super().__init__(spec)
        self.tower = FeatureTower(spec, layer=layer, strategy=strategy)
        if self.tower.has_class and not self.tower.drops_first:
            raise ModelError(
                "vision_feature_select_strategy='full' keeps CLIP's class token, which has no "
                "place among tiles; it must be 'default'"
            )
        self.projector = Projector(spec, self.tower.size, self.media_row_size)
        vision = tower_spec(spec, spec.config["vision_config"])
        self.newline = Parameter("image_newline", (self.media_row_size,), vision)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All tiles of all items in one pass."""
        features_NPD = self.tower(self.pixels_of(items))
        counts = [len(each["pixels"]) for each in items]
        return [
            self.rows_of(item, own_NPD)
            for item, own_NPD in zip(items, features_NPD.split(counts), strict=True)
        ]

    def rows_of(self, item: Mapping[str, Tensor], features_NPD: Tensor) -> Tensor:
        """Rows of an image from the tower's patches of its tiles."""
        rows_NPD = self.projector(features_NPD)
        return torch.cat([rows_NPD[0], self.lines(self.picture(item, rows_NPD[1:]))])

    def picture(self, item: Mapping[str, Tensor], rows_NPD: Tensor) -> Tensor:
        """The tiles' patches [R, C, D] where they are in the image, without borders."""
        down, across, height, width = item["layout"].tolist()
        side = self.tower.side
        tiles = rows_NPD.view(down, across, side, side, -1)
        picture_RCD = tiles.transpose(1, 2).reshape(down * side, across * side, -1)
        top = (down * side - height) // 2
        left = (across * side - width) // 2
        return picture_RCD[top : top + height, left : left + width]

    def lines(self, picture_RCD: Tensor) -> Tensor:
        """All patches in one line, each row with its end behind it."""
        end_R1D = self.newline.weight.expand(len(picture_RCD), 1, -1)
        return torch.cat([picture_RCD, end_R1D], dim=1).flatten(0, 1)

    def encode_bytes(self, num_rows: int) -> int:
        """What the tower holds for patches, of which a narrow image leaves up to half unused."""
        return 2 * num_rows * self.tower.bytes_per_patch
