"""LLaVA-NeXT: an image as a whole and in tiles of a canvas that suits its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "LlavaNextForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add LlavaNextForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.llava_next.model:LlavaNext",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image",),
            conformance="octavo_plugins.models.llava_next.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.llava_next.inputs:place_images")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(NAME, "octavo_plugins.models.llava_next.inputs:pixels")
