"""Qwen2.5-VL: Qwen2-VL with windows in its encoder, and videos placed by their seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_plugins.models.qwen2_vl import KWARGS
from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen2_5_VLForConditionalGeneration."""
    models.add(
        "Qwen2_5_VLForConditionalGeneration",
        "octavo_plugins.models.qwen2_5_vl.model:Qwen25VL",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image", "video"),
            position_axes=3,
            conformance="octavo_plugins.models.qwen2_5_vl.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places and positions of its media in a prompt."""
    inputs.add(
        "Qwen2_5_VLForConditionalGeneration", "octavo_plugins.models.qwen2_5_vl.inputs:place_media"
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the patches that its encoder takes."""
    mm.add(
        "Qwen2_5_VLForConditionalGeneration",
        "octavo_plugins.models.qwen2_5_vl.inputs:patches",
        options="octavo_plugins.models.qwen2_vl.inputs:decode_options",
        kwargs=KWARGS,
        rows="octavo_plugins.models.qwen2_5_vl.inputs:given_rows",
    )
