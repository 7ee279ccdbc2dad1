"""What the conformance kit tries Qwen2-Audio with."""

from __future__ import annotations

from octavo.testing.media_items import sound
from octavo.testing.variants import TINY_TEXT, MediaExample, Variant

AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "num_mel_bins": 80,
    "max_source_positions": 100,
}
"""Settings of an encoder that hears two seconds."""
SOUND = 150
VARIANTS = {
    "sounds": Variant(
        config={
            "audio_config": AUDIO,
            "text_config": {**TINY_TEXT, "model_type": "qwen2"},
            "audio_token_index": SOUND,
        },
        media={"audio": MediaExample(tokens=(SOUND,), make=sound)},
    )
}
