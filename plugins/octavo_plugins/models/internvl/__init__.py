"""InternVL: images in tiles and frames of videos, each between two tokens of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import FRAME_KWARGS, InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "InternVLForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add InternVLForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.internvl.model:InternVL",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image", "video"),
            conformance="octavo_plugins.models.internvl.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.internvl.inputs:place_media")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.internvl.inputs:pixels",
        options="octavo_plugins.models.internvl.inputs:decode_options",
        kwargs={"min_patches": (1, 40), "max_patches": (1, 40), **FRAME_KWARGS},
    )
