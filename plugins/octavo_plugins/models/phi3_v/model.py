"""Phi 3.5 vision: squares of four CLIP patches become rows of a Phi 3.

Axis suffixes: N tiles, C channels, H and W pixels, P patches, D hidden, R rows and S columns of
squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.loading import load_weights
from octavo.layers.vision import Parameter, VisionTransformer, pixels_of, tower_spec
from octavo_plugins.models.llava.language import patch_bytes, side_of
from octavo_plugins.models.phi3.model import Phi3
from octavo_plugins.models.phi3_v.inputs import tower_config
from octavo_registry.model import ModelSpec

NAME = "model.vision_embed_tokens"


class Phi3V(Phi3):
    """Phi3VForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        hidden = spec.config["hidden_size"]
        vision = tower_spec(spec, tower_config(spec.config))
        self.tower = VisionTransformer(
            f"{NAME}.img_processor.vision_model",
            vision,
            class_token=True,
            num_layers=vision.config["num_hidden_layers"] - 1,
            final_norm=False,
        )
        size = 4 * vision.config["hidden_size"]
        self.border = Parameter(f"{NAME}.glb_GN", (1, 1, size), vision)
        self.row_end = Parameter(f"{NAME}.sub_GN", (1, 1, 1, size), vision)
        projection = f"{NAME}.img_projection"
        self.first = ReplicatedLinear(f"{projection}.0", size, hidden, bias=True, spec=vision)
        self.last = ReplicatedLinear(f"{projection}.2", hidden, hidden, bias=True, spec=vision)
        self.media_row_size: int = hidden
        self._tile: int = vision.config["image_size"]
        self._side = side_of(vision.config)
        self._bytes_per_patch = patch_bytes(vision)
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All tiles of all items in one pass, each item's whole image before its tiles."""
        cut = [self._cut(each) for each in items]
        patches_NPD = self.tower(torch.cat(cut))[-1][:, 1:]
        pieces = patches_NPD.split([len(each) for each in cut])
        rows = [
            torch.cat([self._lines(own[1:], item), self.border.weight[0], self._lines(own[:1])])
            for own, item in zip(pieces, items, strict=True)
        ]
        rows_PD: Tensor = self.last(self.first.activated(torch.cat(rows), "gelu"))
        return torch.split(rows_PD, [len(each) for each in rows])

    def _cut(self, item: Mapping[str, Tensor]) -> Tensor:
        """The whole image in one tile, then its tiles row by row [N, C, H, W]."""
        tile = self._tile
        # The whole is made smaller in float32, of which it keeps what bytes would lose.
        image_1CHW = pixels_of(item, torch.float32)
        whole_1CHW = F.interpolate(image_1CHW, (tile, tile), mode="bicubic")
        tiles = image_1CHW[0].unflatten(2, (-1, tile)).unflatten(1, (-1, tile))
        tiles_NCHW = tiles.permute(1, 3, 0, 2, 4).flatten(0, 1)
        return torch.cat([whole_1CHW, tiles_NCHW]).to(self._dtype)

    def _lines(self, patches_NPD: Tensor, item: Mapping[str, Tensor] | None = None) -> Tensor:
        """Squares of four patches in the order of the picture, an end behind each row."""
        down = across = 1
        if item is not None:
            _, _, height, width = item["pixels"].shape
            down, across = height // self._tile, width // self._tile
        half = self._side // 2
        squares = patches_NPD.reshape(down, across, half, 2, half, 2, -1)
        # tiles down, rows of squares, tiles across, columns of squares, the four patches' entries
        picture_RSD = (
            squares.permute(0, 2, 1, 4, 3, 5, 6).flatten(4).reshape(down * half, across * half, -1)
        )
        ends_R1D = self.row_end.weight[0].expand(down * half, 1, -1)
        return torch.cat([picture_RSD, ends_R1D], dim=1).flatten(0, 1)

    def encode_bytes(self, num_rows: int) -> int:
        """Four patches become one row."""
        return 4 * num_rows * self._bytes_per_patch

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters; of the tower, the last layer and its norm are left out."""
        return load_weights(
            self,
            tensors,
            ignore=lambda name: name.startswith(NAME) or self.is_not_needed(name),
        )
