"""Qwen3-VL: rows of media that reach several layers, videos with their seconds as text; MoE too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_plugins.models.qwen2_vl import KWARGS
from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
CLASSES = {
    "Qwen3VLForConditionalGeneration": ("Qwen3VL", "DENSE"),
    "Qwen3VLMoeForConditionalGeneration": ("Qwen3VLMoe", "EXPERTS"),
}


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add both architectures."""
    for architecture, (name, variants) in CLASSES.items():
        models.add(
            architecture,
            f"octavo_plugins.models.qwen3_vl.model:{name}",
            capabilities=ModelCapabilities(
                quantizations=("*",),
                lora=True,
                modalities=("image", "video"),
                position_axes=3,
                conformance=f"octavo_plugins.models.qwen3_vl.conformance:{variants}",
            ),
        )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places and positions of their media in a prompt."""
    for architecture in CLASSES:
        inputs.add(architecture, "octavo_plugins.models.qwen3_vl.inputs:place_media")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the patches that their encoder takes."""
    for architecture in CLASSES:
        mm.add(
            architecture,
            "octavo_plugins.models.qwen3_vl.inputs:patches",
            options="octavo_plugins.models.qwen2_vl.inputs:decode_options",
            kwargs=KWARGS,
            rows="octavo_plugins.models.qwen3_vl.inputs:given_rows",
        )
