"""Ultravox: sounds through Whisper's encoder, eight positions a token, into a Llama or Mistral."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, ModelCapabilities, ModelPart, hookimpl
from octavo_registry.modalities import InputRegistry, MultimodalRegistry

if TYPE_CHECKING:
    from octavo_registry import Model

OCTAVO_API = "1"
NAME = "UltravoxModel"
PARTS = (
    ModelPart(config="text_config", model="text_model_id", prefixes=(("", "language_model."),)),
    ModelPart(
        config="audio_config",
        model="audio_model_id",
        prefixes=(("model.encoder.", "audio_tower."), ("encoder.", "audio_tower.")),
    ),
)


@hookimpl
def register_models(models: LazyRegistry[Model]) -> None:
    """Add UltravoxModel."""
    models.add(
        NAME,
        "octavo_plugins.models.ultravox.model:Ultravox",
        capabilities=ModelCapabilities(
            quantizations=("*",),
            modalities=("audio",),
            parts=PARTS,
            conformance="octavo_plugins.models.ultravox.conformance:VARIANTS",
        ),
    )


@hookimpl
def register_inputs(inputs: InputRegistry) -> None:
    """Add the places of its sounds in a prompt."""
    inputs.add(
        NAME,
        "octavo_plugins.models.ultravox.inputs:place_sounds",
        texts={"audio": "<|audio|>"},
        marks=("<|audio|>",),
    )


@hookimpl
def register_multimodal(mm: MultimodalRegistry) -> None:
    """Add the samples that its encoder takes."""
    mm.add(
        NAME,
        "octavo_plugins.models.qwen2_audio.inputs:samples",
        options="octavo_plugins.models.qwen2_audio.inputs:sound_options",
    )
