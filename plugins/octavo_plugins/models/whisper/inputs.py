"""The sound of a prompt for Whisper: samples at the rate that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.errors import PromptError
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

RATE = 16_000
"""Samples per second."""
SAMPLES_PER_POSITION = 320
"""Samples that a position of the encoder stands for."""


def take_sound(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """No token stands for the sound: all of the decoder's layers read all that is made of it."""
    if len(prompt.media) != 1:
        raise PromptError(f"the prompt has {len(prompt.media)} sounds, and a transcript is of one")
    return replace(prompt, cross_rows=settings.config["max_source_positions"])


def samples(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The sound as it is; the model hears silence behind it."""
    import torch

    most = max_samples(settings)
    if len(item.value.samples) > most:
        raise PromptError(
            f"the sound has {len(item.value.samples) / RATE:.1f} seconds, and this model hears "
            f"{most / RATE:g}: cut it, or send it to /v1/audio/transcriptions, which does"
        )
    return {"samples": torch.from_numpy(item.value.samples)}


def options(modality: str, settings: MediaSettings) -> dict[str, Any]:
    """What the decoder of sounds is to give."""
    return {"rate": RATE}


def max_samples(settings: MediaSettings) -> int:
    """Samples of a sound: the encoder's positions are all there is."""
    positions: int = settings.config["max_source_positions"]
    return positions * SAMPLES_PER_POSITION
