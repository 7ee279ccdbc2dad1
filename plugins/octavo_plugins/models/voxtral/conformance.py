"""What the conformance kit tries Voxtral with."""

from __future__ import annotations

from octavo.layers.speech import encoder_config
from octavo.testing.media_items import sound
from octavo.testing.variants import TINY_TEXT, MediaExample, Variant
from octavo_plugins.models.qwen2_audio.conformance import AUDIO

SOUND = 150
ONE_SECOND = {**encoder_config(AUDIO), "max_source_positions": 50}
VARIANTS = {
    "sounds of one window and of two": Variant(
        config={
            "audio_config": ONE_SECOND,
            "text_config": TINY_TEXT,
            "audio_token_id": SOUND,
        },
        media={"audio": MediaExample(tokens=(SOUND,), make=sound)},
    )
}
