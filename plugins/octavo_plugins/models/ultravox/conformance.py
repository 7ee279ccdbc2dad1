"""What the conformance kit tries Ultravox with."""

from __future__ import annotations

from octavo.testing.media_items import sound
from octavo.testing.variants import TINY_TEXT, MediaExample, Variant
from octavo_plugins.models.qwen2_audio.conformance import AUDIO

SOUND = TINY_TEXT["vocab_size"]
"""The first id behind the vocabulary."""
VARIANTS = {
    "sounds of one window and of two": Variant(
        config={
            "audio_config": {**AUDIO, "max_source_positions": 50},
            "text_config": TINY_TEXT,
            "hidden_size": 48,
            "projector_ln_mid": True,
        },
        media={"audio": MediaExample(tokens=(SOUND,), make=sound)},
    )
}
