"""LLaVA 1.5: images through CLIP into a Llama; and Pixtral under the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add LlavaForConditionalGeneration."""
    models.add(
        "LlavaForConditionalGeneration",
        "octavo_plugins.models.llava.model:build",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image",),
            conformance="octavo_plugins.models.llava.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its images in a prompt."""
    inputs.add(
        "LlavaForConditionalGeneration",
        "octavo_plugins.models.llava.inputs:place_images",
        texts={"image": "<image>"},
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(
        "LlavaForConditionalGeneration",
        "octavo_plugins.models.llava.inputs:pixels",
        kwargs_of="octavo_plugins.models.llava.inputs:processor_kwargs",
        rows="octavo_plugins.models.llava.inputs:given_rows",
    )
