"""LLaVA 1.5: CLIP's patches behind two products stand where a prompt has an image.

Axis suffixes: N images, P patches, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from octavo_plugins.models.llava.language import FeatureTower, Projector, VisionLanguageModel
from octavo_registry.model import ModelSpec


def build(spec: ModelSpec) -> VisionLanguageModel:
    """LlavaForConditionalGeneration, whose tower says whether it is a LLaVA or a Pixtral."""
    if spec.config["vision_config"].get("model_type") == "pixtral":
        from octavo_plugins.models.pixtral.model import Pixtral

        return Pixtral(spec)
    return Llava(spec)


class Llava(VisionLanguageModel):
    """A CLIP or SigLIP of one size of image."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.tower = FeatureTower(spec, layer=-2, strategy="default")
        self.projector = Projector(spec, self.tower.size, self.media_row_size)

    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Tensor]:
        """Rows of all images, which are of one size, at once."""
        rows_NPD = self.projector(self.tower(self.pixels_of(items)))
        return list(rows_NPD)

    def encode_bytes(self, num_rows: int) -> int:
        """What the tower holds for the patches of so many rows."""
        return num_rows * self.tower.bytes_per_patch
