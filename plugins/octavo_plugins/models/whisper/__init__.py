"""Whisper: speech to text, by an encoder that the decoder's layers read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add WhisperForConditionalGeneration."""
    models.add(
        "WhisperForConditionalGeneration",
        "octavo_plugins.models.whisper.model:Whisper",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            tasks=("generate", "transcribe"),
            modalities=("audio",),
            transcriber="octavo_plugins.models.whisper.transcriber:WhisperTranscriber",
            reference="octavo_plugins.models.whisper.reference:Reference",
            conformance="octavo_plugins.models.whisper.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the sound that a prompt is a transcript of."""
    inputs.add(
        "WhisperForConditionalGeneration",
        "octavo_plugins.models.whisper.inputs:take_sound",
        special_tokens=False,
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the samples that its encoder takes."""
    mm.add(
        "WhisperForConditionalGeneration",
        "octavo_plugins.models.whisper.inputs:samples",
        options="octavo_plugins.models.whisper.inputs:options",
    )
