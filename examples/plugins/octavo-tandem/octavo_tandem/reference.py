"""Tandem as plainly as can be: no cache, no batching, no fused weights.

Parameters are named as in checkpoints. Axis suffixes: B prompts, T tokens, H heads, D hidden or
head size, F rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention


def reference(config: Mapping[str, Any]) -> nn.Module:
    """Build it; ``forward(tokens_BT)`` gives logits [B, T, vocabulary]."""
    return Reference(config)


class Reference(nn.Module):
    """The whole model; the embedding is the output head too."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.logit_scale = config["logit_scale"]

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits at every position."""
        head_VD = self.model.embed_tokens.weight
        logits_BTV: Tensor = self.model(tokens_BT) @ head_VD.T * self.logit_scale
        return logits_BTV


class Decoder(nn.Module):
    """Embedding, layers and norm."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden_size = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.LayerNorm(hidden_size, config["layer_norm_eps"])

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Hidden states at every position."""
        x_BTD = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        out_BTD: Tensor = self.norm(x_BTD)
        return out_BTD


class Layer(nn.Module):
    """Attention and MLP of the same norm, their sum scaled by channel."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        self.attention = SelfAttention(config)
        self.mlp = SquaredReluMLP(config)
        self.scale = ChannelScale(config["hidden_size"])

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The residual stream after this layer."""
        normed_BTD = self.norm(x_BTD)
        branches_BTD = self.attention(normed_BTD) + self.mlp(normed_BTD)
        out_BTD: Tensor = x_BTD + self.scale(branches_BTD)
        return out_BTD


class ChannelScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The scaled x."""
        return x_BTD * self.weight


class SelfAttention(nn.Module):
    """Attention over all earlier tokens."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden_size, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.head_dim = hidden_size // self.heads
        self.rotary_dim = int(self.head_dim * config["partial_rotary_factor"])
        self.rope_theta = config["rope_theta"]
        kv_size = config["num_key_value_heads"] * self.head_dim
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The layer's result, without the residual."""
        q_BHTD, k_BHTD, v_BHTD = (
            projection(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out_BHTD = scaled_dot_product_attention(
            self._turned(q_BHTD), self._turned(k_BHTD), v_BHTD, is_causal=True, enable_gqa=True
        )
        out_BTD: Tensor = self.o_proj(out_BHTD.transpose(1, 2).flatten(2))
        return out_BTD

    def _turned(self, x_BHTD: Tensor) -> Tensor:
        """Turn pairs (i, i + F) of each head's first entries by the token's position."""
        exponents_F = torch.arange(0, self.rotary_dim, 2) / self.rotary_dim
        positions_T = torch.arange(x_BHTD.shape[2], dtype=torch.float32)
        angles_TF = torch.outer(positions_T, self.rope_theta**-exponents_F)
        cos_TF, sin_TF = angles_TF.cos(), angles_TF.sin()
        first_BHTF, second_BHTF = x_BHTD[..., : self.rotary_dim].chunk(2, dim=-1)
        turned = (
            first_BHTF * cos_TF - second_BHTF * sin_TF,
            second_BHTF * cos_TF + first_BHTF * sin_TF,
        )
        return torch.cat((*turned, x_BHTD[..., self.rotary_dim :]), dim=-1)


class SquaredReluMLP(nn.Module):
    """down(relu(up(x)) ** 2)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden_size, size = config["hidden_size"], config["intermediate_size"]
        self.up_proj = nn.Linear(hidden_size, size, bias=False)
        self.down_proj = nn.Linear(size, hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The layer's result, without the residual."""
        out_BTD: Tensor = self.down_proj(relu(self.up_proj(x_BTD)).square())
        return out_BTD
