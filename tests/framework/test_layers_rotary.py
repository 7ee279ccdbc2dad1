from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.errors import ModelError
from octavo.layers.rotary import RotaryEmbedding, rotary_frequencies
from octavo_registry.model import ModelSpec

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": YARN,
    "yarn from lengths": {**YARN, "factor": None},
    "yarn not truncated": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with attention factor": {**YARN, "attention_factor": 1.25},
    "yarn with mscale": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5},
    "dynamic within the trained length": {"rope_type": "dynamic", "factor": 4.0},
}


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return ModelSpec(
        **{
            "architecture": "LlamaForCausalLM",
            "config": config,
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "max_model_len": 512,
            **changes,
        }
    )


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_angles_equal_those_of_transformers(rope: dict[str, Any], theta: float) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=512,
        rope_parameters={**rope, "rope_theta": theta},
    )
    positions = torch.tensor([0, 1, 5, 64, 300, 511])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    found_cos, found_sin = RotaryEmbedding(64, spec=spec_of(config.to_dict()))(positions)
    torch.testing.assert_close(found_cos, cos[0, :, :32], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found_sin, sin[0, :, :32], atol=1e-4, rtol=1e-4)


def test_old_and_new_style_configs_mean_the_same() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    old = rotary_frequencies({"rope_theta": 500.0, "rope_scaling": scaling}, 16, 128)
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    torch.testing.assert_close(old, rotary_frequencies({"rope_parameters": new}, 16, 128))
    plain, _ = rotary_frequencies({"rope_theta": 500.0}, 16, 128)
    torch.testing.assert_close(old[0] * 2, plain)


def test_angles_are_float32_where_the_model_is_not() -> None:
    """In bfloat16, position 301 and 300 would be one."""
    rotary = RotaryEmbedding(8, spec=spec_of({}, dtype=torch.bfloat16))
    cos_TF, _ = rotary(torch.tensor([301]))
    assert cos_TF.dtype == torch.bfloat16
    exact = torch.tensor(301.0).cos()
    torch.testing.assert_close(cos_TF[0, 0].float(), exact, atol=4e-3, rtol=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type='spiral' is not known"),
        ({"rope_scaling": {"type": "linear"}}, "needs 'factor'"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 256},
            "set max_model_len=256",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ by kind of layer"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        RotaryEmbedding(8, spec=spec_of(config))
