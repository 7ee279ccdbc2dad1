"""The configurations of Granite that the conformance kit tries, and what is switched off."""

from octavo.testing.variants import Variant

MULTIPLIERS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.22,
    "logits_scaling": 2.0,
}

VARIANTS = {
    "four multipliers": Variant(
        config={**MULTIPLIERS, "rms_norm_eps": 1e-2},  # so that the epsilon counts
        without={
            **{name: {name: 1.0} for name in MULTIPLIERS},
            "epsilon": {"rms_norm_eps": 1e-5},
        },
    ),
    "tied, biases": Variant(
        config={
            **MULTIPLIERS,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        }
    ),
}
