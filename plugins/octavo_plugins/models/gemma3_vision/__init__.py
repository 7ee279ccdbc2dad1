"""Gemma 3 with images, which see all of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Gemma3ForConditionalGeneration."""
    models.add(
        "Gemma3ForConditionalGeneration",
        "octavo_plugins.models.gemma3_vision.model:Gemma3Vision",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image",),
            media_attention="bidirectional",
            conformance="octavo_plugins.models.gemma3_vision.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its images in a prompt."""
    inputs.add(
        "Gemma3ForConditionalGeneration", "octavo_plugins.models.gemma3_vision.inputs:place_images"
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add("Gemma3ForConditionalGeneration", "octavo_plugins.models.gemma3_vision.inputs:pixels")
