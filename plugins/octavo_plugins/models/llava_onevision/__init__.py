"""LLaVA-OneVision: images in tiles and videos through SigLIP into a Qwen2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import FRAME_KWARGS, InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "LlavaOnevisionForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add LlavaOnevisionForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.llava_onevision.model:LlavaOnevision",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image", "video"),
            conformance="octavo_plugins.models.llava_onevision.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.llava_onevision.inputs:place_media")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.llava_onevision.inputs:pixels",
        options="octavo_plugins.models.llava_onevision.inputs:decode_options",
        kwargs=FRAME_KWARGS,
    )
