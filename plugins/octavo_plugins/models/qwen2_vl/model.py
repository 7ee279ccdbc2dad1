"""Qwen2-VL around a Qwen2 whose heads turn by time, height and width.

Axis suffixes: P patches, C channels, S frames of a patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from octavo.layers.attention import head_dim_of
from octavo.layers.decoder import CausalLM
from octavo.layers.loading import load_weights
from octavo.layers.rotary import MultiAxisRotary, rope_parameters
from octavo.layers.vision import normalised, tower_spec
from octavo_plugins.models.qwen2.model import decoder_layer
from octavo_plugins.models.qwen2_vl.vision import VisionEncoder
from octavo_registry.model import ModelSpec

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
PREFIXES = (
    ("model.language_model.", "model."),
    ("model.visual.", "visual."),
)
"""Of newer checkpoints, and ours, which are those of the first ones."""


class Qwen2VL(CausalLM):
    """Qwen2VLForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        config = {**spec.config, **(spec.config.get("text_config") or {})}
        text = tower_spec(spec, config)
        sections = rope_parameters(config)["mrope_section"]
        super().__init__(
            text, decoder_layer, MultiAxisRotary(head_dim_of(config), sections, spec=text)
        )
        self.visual = VisionEncoder("visual", tower_spec(spec, spec.config["vision_config"]))
        self.media_row_size = config["hidden_size"]
        self._per_step = spec.config["vision_config"]["temporal_patch_size"]
        self._mean = torch.tensor(MEAN, device=spec.device).view(3, 1, 1, 1)
        self._std = torch.tensor(STD, device=spec.device).view(3, 1, 1, 1)
        self._dtype = spec.dtype

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """All items in one pass over their patches."""
        # An image's only frame stands for all of its step.
        pixels_PCSHW = torch.cat(
            [each["patches"].expand(-1, -1, self._per_step, -1, -1) for each in items]
        )
        pixels_PCSHW = normalised(pixels_PCSHW, self._mean, self._std, self._dtype)
        grids = [tuple(each["grid"].tolist()) for each in items]
        rows_MD = self.visual(pixels_PCSHW, grids)
        counts = [len(each["patches"]) // (len(pixels_PCSHW) // len(rows_MD)) for each in items]
        return rows_MD.split(counts)

    def encode_bytes(self, num_rows: int) -> int:
        """Queries, keys, values and what is inside the feed-forward layer, for each patch."""
        block = self.visual.blocks[0]
        patches = num_rows * self.visual.merger.first.in_features // block.fc1.in_features
        return patches * self._dtype.itemsize * 4 * block.fc1.out_features

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters, whatever version of Transformers has written them."""
        return load_weights(self, _renamed(tensors), ignore=self.is_not_needed)


def _renamed(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        for prefix, ours in PREFIXES:
            if name.startswith(prefix):
                name = ours + name.removeprefix(prefix)
                break
        yield name, tensor
