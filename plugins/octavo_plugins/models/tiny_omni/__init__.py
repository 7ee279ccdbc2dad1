"""octavo/tiny-omni: pictures, clips and sounds in one small model, which ships with Octavo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "OctavoOmniForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add OctavoOmniForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.tiny_omni.model:TinyOmni",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            modalities=("image", "video", "audio"),
            conformance="octavo_plugins.models.tiny_omni.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its media in a prompt."""
    inputs.add(NAME, "octavo_plugins.models.tiny_omni.inputs:place_media")


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the pixels and samples that its encoders take."""
    mm.add(
        NAME,
        "octavo_plugins.models.tiny_omni.inputs:tensors",
        options="octavo_plugins.models.tiny_omni.inputs:decode_options",
    )
