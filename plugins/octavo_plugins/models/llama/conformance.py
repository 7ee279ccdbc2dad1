"""The configurations of Llama that the conformance kit tries."""

from octavo.testing.variants import Variant

VARIANTS = {
    "grouped key/value heads": Variant(),
    "tied, biases, llama3 rope": Variant(
        config={
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        }
    ),
    # Ministral's parameters are Llama's; its layers may have windows, which Llama's class ignores.
    "windows on some layers": Variant(
        config={
            "num_hidden_layers": 3,
            "head_dim": 24,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        reference="transformers:MinistralForCausalLM",
    ),
}
