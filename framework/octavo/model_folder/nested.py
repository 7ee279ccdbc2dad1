"""What the config.json of a language model inside another leaves to its kind.

Checkpoints that see or hear often write only those entries of ``text_config`` that differ from the
defaults of its ``model_type``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "rms_norm_eps": 1e-6,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
    },
}
"""Defaults of a ``text_config``, by its ``model_type``."""


def with_text_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json whose ``text_config`` is complete where its kind is known."""
    text = settings.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") not in TEXT_DEFAULTS:
        return dict(settings)
    return {**settings, "text_config": {**TEXT_DEFAULTS[text["model_type"]], **text}}
