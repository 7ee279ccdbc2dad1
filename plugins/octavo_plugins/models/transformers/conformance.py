"""The architectures that the conformance kit tries: what is particular about each, in tiny."""

from collections.abc import Mapping
from typing import Any, Final

from octavo.testing.variants import Variant

WINDOWS: Final = {
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"],
}
EXPERTS: Final = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "CohereForCausalLM": {"logit_scale": 0.25},
    "Cohere2ForCausalLM": WINDOWS,
    "Dots1ForCausalLM": {**WINDOWS, **EXPERTS, "n_routed_experts": 8, "n_shared_experts": 1},
    "Exaone4ForCausalLM": WINDOWS,
    "GPTNeoXForCausalLM": {},
    "Glm4ForCausalLM": {"head_dim": 16},
    "GraniteMoeForCausalLM": {
        "attention_multiplier": 0.4,
        "embedding_multiplier": 2.0,
        "logits_scaling": 4.0,
        "num_local_experts": 8,
    },
    "HeliumForCausalLM": {"head_dim": 16},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 16},
    "MiniCPM3ForCausalLM": {  # values are smaller than keys
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    "NemotronForCausalLM": {},  # passes no keywords on to its attention
    "OlmoForCausalLM": {"clip_qkv": 2.0},
    "OlmoeForCausalLM": {"num_experts": 12, "num_experts_per_tok": 3},  # more than one digit
    "PhiForCausalLM": {},
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0]},
    "Starcoder2ForCausalLM": {"sliding_window": 20},
}
VARIANTS: Final = {
    name: Variant(config=config, architecture=name, reference=f"transformers:{name}")
    for name, config in CONFIGS.items()
}
