"""Qwen2-Audio: sounds of up to 30 seconds through Whisper's encoder into a Qwen 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "Qwen2AudioForConditionalGeneration"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add Qwen2AudioForConditionalGeneration."""
    models.add(
        NAME,
        "octavo_plugins.models.qwen2_audio.model:Qwen2Audio",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            lora=True,
            modalities=("audio",),
            conformance="octavo_plugins.models.qwen2_audio.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its sounds in a prompt."""
    inputs.add(
        NAME,
        "octavo_plugins.models.qwen2_audio.inputs:place_sounds",
        texts={"audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"},
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the samples that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.qwen2_audio.inputs:short_sound",
        options="octavo_plugins.models.qwen2_audio.inputs:sound_options",
    )
