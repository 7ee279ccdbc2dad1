"""Qwen2-VL: images and videos of any size, in a language model with positions in time and space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import FRAME_KWARGS, InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
_LEAST = (1, 1 << 20)  # of each frame of a video too: small ones are enlarged to it
_MOST = (1, 1 << 24)
KWARGS = {
    "min_pixels": _LEAST,
    "max_pixels": _MOST,
    "size": {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"},
    **FRAME_KWARGS,
    "min_frames": (1, 512),
    "max_frames": (1, 512),
}
"""What a request may say of the family's processors."""


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen2VLForConditionalGeneration."""
    models.add(
        "Qwen2VLForConditionalGeneration",
        "octavo_plugins.models.qwen2_vl.model:Qwen2VL",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("image", "video"),
            position_axes=3,
            conformance="octavo_plugins.models.qwen2_vl.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places and positions of its media in a prompt."""
    inputs.add(
        "Qwen2VLForConditionalGeneration", "octavo_plugins.models.qwen2_vl.inputs:place_media"
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the patches that its encoder takes."""
    mm.add(
        "Qwen2VLForConditionalGeneration",
        "octavo_plugins.models.qwen2_vl.inputs:patches",
        options="octavo_plugins.models.qwen2_vl.inputs:decode_options",
        kwargs=KWARGS,
        rows="octavo_plugins.models.qwen2_vl.inputs:given_rows",
    )
