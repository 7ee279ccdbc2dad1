"""Phi 3.5 vision: several images, each in rows of tiles and as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "Phi3VForCausalLM"
MARKS = tuple(f"<|image_{number}|>" for number in range(1, 65))
"""Places by number, as prompts have them: the first image that is given is 1."""


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Phi3VForCausalLM."""
    models.add(
        NAME,
        "octavo_plugins.models.phi3_v.model:Phi3V",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image",),
            conformance="octavo_plugins.models.phi3_v.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(
        NAME,
        "octavo_plugins.models.phi3_v.inputs:place_images",
        texts={"image": "<|image|>"},
        marks=MARKS,
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels that its encoder takes."""
    mm.add(NAME, "octavo_plugins.models.phi3_v.inputs:pixels", kwargs={"num_crops": (1, 64)})
