"""Mistral 3's images, of any size, their rows apart; Pixtral is here for LLaVA's plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "Mistral3ForConditionalGeneration"
KWARGS = {"size": {"longest_edge": (1, 4096)}}
"""What a request may say of its processor, and of Pixtral's."""


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Mistral3ForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.pixtral.model:Mistral3",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image",),
            conformance="octavo_plugins.models.pixtral.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.pixtral.inputs:place_images")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.pixtral.inputs:pixels",
        kwargs=KWARGS,
    )
