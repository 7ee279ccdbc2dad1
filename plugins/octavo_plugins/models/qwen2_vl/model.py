"""Qwen2-VL around a Qwen2 whose heads turn by time, height and width.

Axis suffixes: P patches, C channels, S frames of a patch, M merged squares, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from octavo.layers.attention import head_dim_of
from octavo.layers.decoder import CausalLM
from octavo.layers.loading import load_weights, renamed
from octavo.layers.rotary import MultiAxisRotary, rope_parameters
from octavo.layers.vision import normalised, text_spec, tower_spec
from octavo_plugins.models.qwen2.model import decoder_layer
from octavo_plugins.models.qwen2_vl.inputs import text_config_of
from octavo_plugins.models.qwen2_vl.vision import Grid, VisionEncoder
from octavo_registry.model import ModelSpec

PREFIXES = (
    ("model.language_model.", "model."),
    ("model.visual.", "visual."),
)
"""Prefixes of newer checkpoints, and ours, which are those of the first ones."""


class Encoder(Protocol):
    """``visual`` of a generation."""

    widest: int

    def __call__(self, pixels_PCSHW: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Rows [M, D] of all items."""
        ...


class Qwen2VL(CausalLM):
    """Qwen2VLForConditionalGeneration; the next generations have other encoders and layers."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        encoder: Callable[[str, ModelSpec], Encoder] = VisionEncoder,
        layer: Callable[[ModelSpec, int], nn.Module] = decoder_layer,
        interleaved: bool = False,
    ) -> None:
        config = text_config_of(spec.config)
        text = text_spec(spec, config)
        sections = rope_parameters(config)["mrope_section"]
        rotary = MultiAxisRotary(head_dim_of(config), sections, interleaved=interleaved, spec=text)
        super().__init__(text, layer, rotary)
        vision = tower_spec(spec, spec.config["vision_config"])
        self.visual: Encoder = encoder("visual", vision)
        self.media_row_size = config["hidden_size"]
        self._per_step = vision.config["temporal_patch_size"]
        self._per_square = vision.config["spatial_merge_size"] ** 2
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All items in one pass over their patches."""
        pixels_PCSHW = torch.cat([self._pixels_of(each) for each in items])
        rows_MD = self.visual(pixels_PCSHW, [each["grid"].tolist() for each in items])
        counts = [len(each["patches"]) // self._per_square for each in items]
        rows: Sequence[Tensor] = rows_MD.split(counts)
        return rows

    def _pixels_of(self, item: Mapping[str, Tensor]) -> Tensor:
        """An image's only frame stands for all of its step."""
        mean_C111, std_C111 = item["scale"]
        pixels_PCSHW = normalised(item["patches"], mean_C111, std_C111, self._dtype)
        return pixels_PCSHW.expand(-1, -1, self._per_step, -1, -1)

    def encode_bytes(self, num_rows: int) -> int:
        """What the encoder's widest layer holds for the patches of so many rows."""
        num_bytes: int = num_rows * self._per_square * self.visual.widest * self._dtype.itemsize
        return num_bytes

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters, whatever version of Transformers has written them."""
        return load_weights(self, renamed(tensors, PREFIXES), ignore=self.is_not_needed)
