"""Where a prompt's sounds stand for Ultravox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.inputs.media import expand_placeholders
from octavo.layers.mel import HOP
from octavo_registry.modalities import MediaPrompt, MediaSettings

AUDIO = "<|audio|>"
LEAST_FRAMES = 2
"""Shorter sounds are made longer."""


def place_sounds(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each audio token becomes one for every sixteen frames of each window."""
    config = settings.config
    counts = [
        sum(num_rows(frames, config) for frames in windows_of(len(item.tensors["samples"]), config))
        for item in prompt.media
    ]
    audio = settings.token_id(AUDIO)
    placed = expand_placeholders(prompt, {"audio": audio}, counts)
    # The token need not be in the vocabulary; the last one there is hardly ever a text's.
    shown = min(audio, config["text_config"]["vocab_size"] - 1)
    return replace(
        placed, token_ids=[shown if token == audio else token for token in placed.token_ids]
    )


def windows_of(num_samples: int, config: Mapping[str, Any]) -> list[int]:
    """The frames of each part of a sound that the encoder hears at once."""
    most = 2 * int(config["audio_config"]["max_source_positions"])
    frames = max(LEAST_FRAMES, -(-num_samples // HOP))
    return [min(most, frames - start) for start in range(0, frames, most)]


def num_rows(frames: int, config: Mapping[str, Any]) -> int:
    """Rows of a window."""
    return -(-frames // (2 * int(config.get("stack_factor", 8))))
