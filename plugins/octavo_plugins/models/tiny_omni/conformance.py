"""What the conformance kit tries the architecture with."""

from __future__ import annotations

from octavo.testing.media_items import clip, picture, sound
from octavo.testing.variants import TINY_TEXT, MediaExample, Variant

IMAGE, VIDEO, AUDIO = 150, 151, 152
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "layer_norm_eps": 1e-5,
}
VARIANT = Variant(
    config={
        **TINY_TEXT,
        "head_dim": 16,
        "vision_config": {**TOWER, "image_size": 32, "channels": [8, 16], "num_frames": 4},
        "audio_config": {**TOWER, "num_mel_bins": 16, "slice_size": 8, "num_slices": 28},
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "audio_token_id": AUDIO,
    },
    media={
        "image": MediaExample(tokens=(IMAGE,), make=picture),
        "video": MediaExample(tokens=(VIDEO,), make=clip),
        "audio": MediaExample(tokens=(AUDIO,), make=sound),
    },
)
VARIANTS = {"pictures, clips and sounds": VARIANT}
