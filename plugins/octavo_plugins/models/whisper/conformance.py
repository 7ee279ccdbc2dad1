"""What the conformance kit tries Whisper with, of which no token is ruled out."""

from __future__ import annotations

from typing import Any

from octavo.testing.media_items import sound
from octavo.testing.variants import TINY, MediaExample, Variant


def leave_out_positions(model: Any) -> None:
    """Let the decoder's tokens stand anywhere."""
    model.decoder.embed_positions.weight.data.zero_()


def leave_out_query_biases(model: Any) -> None:
    """Let the queries for what is heard be plain products."""
    for layer in model.decoder.layers:
        layer.encoder_attn.q_proj.bias.data.zero_()


VARIANTS = {
    "one sound": Variant(
        config={
            "num_mel_bins": 80,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 72,
            "max_source_positions": 100,  # two seconds
            "max_target_positions": TINY["max_position_embeddings"],
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        without={
            "position": leave_out_positions,
            "bias of queries": leave_out_query_biases,
        },
        media={"audio": MediaExample(tokens=(), make=sound)},
        one_item=True,
    )
}
