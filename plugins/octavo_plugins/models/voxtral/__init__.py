"""Voxtral: sounds of any length, in windows of 30 seconds, through Whisper's encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "VoxtralForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add VoxtralForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.voxtral.model:Voxtral",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("audio",),
            conformance="octavo_plugins.models.voxtral.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its sounds in a prompt."""
    inputs.add(
        NAME,
        "octavo_plugins.models.voxtral.inputs:place_sounds",
        texts={"audio": "[BEGIN_AUDIO][AUDIO]"},
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the samples that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.qwen2_audio.inputs:samples",
        options="octavo_plugins.models.qwen2_audio.inputs:sound_options",
    )
