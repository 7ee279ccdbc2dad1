"""Where a prompt's sounds stand for Qwen2-Audio, and the samples that its encoder takes.

Samples are sent as they are: the fewest bytes for most sounds, and no work for the CPU. The model
makes features of them on its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, PromptError
from octavo.inputs.media import expand_placeholders
from octavo.layers.mel import HOP, RATE, WINDOW
from octavo.layers.speech import num_positions
from octavo_plugins.models.llava.inputs import media_token
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

MADE_BY = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW, "dither": 0}
"""Entries of a Whisper feature extractor; all have these values."""


def place_sounds(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each audio token becomes one for every four frames that have sound."""
    counts = [num_rows(len(item.tensors["samples"])) for item in prompt.media]
    return expand_placeholders(prompt, {"audio": media_token(settings, "audio", 151646)}, counts)


def num_rows(num_samples: int) -> int:
    """Whole pairs of the encoder's positions."""
    return num_positions(-(-num_samples // HOP)) // 2


def short_sound(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """The samples of a sound that the encoder hears at once."""
    made = samples(modality, item, settings)
    num_samples = len(made["samples"])
    most = window_samples(settings.config)
    if num_samples > most:
        raise PromptError(
            f"a sound of {num_samples / RATE:.2f} seconds; this model hears {most / RATE:g} at "
            "once: send it in parts"
        )
    if num_rows(num_samples) == 0:
        raise PromptError(f"a sound of {num_samples} samples is too short to be heard")
    return made


def samples(modality: str, item: MediaItem, settings: MediaSettings) -> dict[str, Tensor]:
    """The samples of a sound of any length."""
    return {"samples": torch.from_numpy(item.value.samples)}


def sound_options(modality: str, settings: MediaSettings) -> dict[str, Any]:
    """The rate that sounds are resampled to."""
    for name, value in MADE_BY.items():
        given = settings.entry("audio", name, value)
        if given != value:
            raise ModelError(f"{name}={given!r} of the model's feature extractor must be {value}")
    return {"rate": RATE}


def window_samples(config: Mapping[str, Any]) -> int:
    """As many as the encoder has positions for: 30 seconds."""
    return 2 * HOP * int(config["audio_config"]["max_source_positions"])
