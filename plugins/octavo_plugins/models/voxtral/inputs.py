"""Where a prompt's sounds stand for Voxtral."""

from __future__ import annotations

from octavo.inputs.media import expand_placeholders
from octavo_plugins.models.llava.inputs import media_token
from octavo_plugins.models.qwen2_audio.inputs import window_samples
from octavo_registry.modalities import MediaPrompt, MediaSettings


def place_sounds(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """Each audio token becomes those of all windows that the sound begins."""
    audio = settings.config["audio_config"]
    entries = audio["max_source_positions"] * audio["hidden_size"]
    per_window = entries // audio["intermediate_size"]
    size = window_samples(settings.config)
    counts = [-(-len(item.tensors["samples"]) // size) * per_window for item in prompt.media]
    return expand_placeholders(prompt, {"audio": media_token(settings, "audio", 24)}, counts)
