"""LLaVA-NeXT-Video: LLaVA-NeXT's images, and frames whose patches are pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import FRAME_KWARGS, InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "LlavaNextVideoForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add LlavaNextVideoForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.llava_next_video.model:LlavaNextVideo",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image", "video"),
            conformance="octavo_plugins.models.llava_next_video.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.llava_next_video.inputs:place_media")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.llava_next_video.inputs:pixels",
        options="octavo_plugins.models.llava_next_video.inputs:decode_options",
        kwargs=FRAME_KWARGS,
    )
