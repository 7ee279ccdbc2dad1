"""What the conformance kit tries Qwen3-VL with."""

from __future__ import annotations

from typing import Any

from octavo.testing.variants import TINY_TEXT, Variant
from octavo_plugins.models.qwen2_vl.conformance import MEDIA, ROPE, TOKENS

INTERLEAVED = {**ROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
TEXT = {**TINY_TEXT, "head_dim": 16, "num_hidden_layers": 3, "rope_parameters": INTERLEAVED}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
LIMITS = {"size": {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 8}}


def _variant(**entries: Any) -> Variant:
    text = {**TEXT, **entries}
    return Variant(
        config={
            "text_config": text,
            "vision_config": VISION,
            "tie_word_embeddings": False,
            **TOKENS,
        },
        media=MEDIA,
        files={"preprocessor_config.json": LIMITS},
    )


DENSE = {"images and videos": _variant()}
EXPERTS = {
    "images and videos": _variant(
        moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1]
    )
}
