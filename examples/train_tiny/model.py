"""The Llama architecture for training, on one long line of tokens that holds many documents.

Parameters have the names that Hugging Face gives them, so that ``state_dict`` is the checkpoint.
Axes in names: T tokens, D hidden, H heads, K key/value heads, E head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Entries of config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 384
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def as_json(self) -> dict[str, Any]:
        fixed = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }
        return fixed | asdict(self)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.size = size
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.max_length = config.max_position_embeddings
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)

    def forward(self, x_TD: Tensor, cos_TE: Tensor, sin_TE: Tensor, borders: Tensor) -> Tensor:
        q_THE = rotate(self.q_proj(x_TD).unflatten(-1, (-1, self.size)), cos_TE, sin_TE)
        k_TKE = rotate(self.k_proj(x_TD).unflatten(-1, (-1, self.size)), cos_TE, sin_TE)
        v_TKE = self.v_proj(x_TD).unflatten(-1, (-1, self.size))
        k_THE = k_TKE.repeat_interleave(self.group, dim=1)
        v_THE = v_TKE.repeat_interleave(self.group, dim=1)
        return self.o_proj(attend(q_THE, k_THE, v_THE, borders, self.max_length).flatten(1))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_TD: Tensor, cos_TE: Tensor, sin_TE: Tensor, borders: Tensor) -> Tensor:
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), cos_TE, sin_TE, borders)
        return x_TD + self.mlp(self.post_attention_layernorm(x_TD))


class Body(nn.Module):
    """What Hugging Face calls ``model``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Llama(nn.Module):
    """Logits for every token; ``borders`` are where documents begin, and the end of the last."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self._initialise()

    def forward(self, ids_T: Tensor, positions_T: Tensor, borders: Tensor) -> Tensor:
        cos_TE, sin_TE = self._angles(positions_T)
        x_TD = self.model.embed_tokens(ids_T)
        for layer in self.model.layers:
            x_TD = layer(x_TD, cos_TE, sin_TE, borders)
        return F.linear(self.model.norm(x_TD), self.model.embed_tokens.weight)

    def _angles(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.arange(0, self.config.head_dim, 2, device=positions_T.device)
        frequencies = self.config.rope_theta ** -(steps.float() / self.config.head_dim)
        angles = (positions_T[:, None].float() * frequencies).repeat(1, 2)
        return angles.cos(), angles.sin()

    def _initialise(self) -> None:
        """Small weights, smaller still where a layer writes to the residual stream."""
        depth = 2 * self.config.num_hidden_layers
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / depth**0.5 if writes else 0.02)


def rotate(x_THE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotary positions, in the order of Hugging Face: first half and second half are pairs."""
    first, second = x_THE.chunk(2, dim=-1)
    turned_THE = torch.cat((-second, first), dim=-1)
    return (x_THE * cos_TE[:, None] + turned_THE * sin_TE[:, None]).to(x_THE.dtype)


def attend(q_THE: Tensor, k_THE: Tensor, v_THE: Tensor, borders: Tensor, longest: int) -> Tensor:
    """Causal attention in which no document sees another."""
    if q_THE.is_cuda:
        return varlen_attn(
            q_THE, k_THE, v_THE, borders, borders, longest, longest, window_size=(-1, 0)
        )
    lengths = borders.diff().tolist()
    parts = zip(*(x_THE.split(lengths) for x_THE in (q_THE, k_THE, v_THE)), strict=True)
    return torch.cat([_causal(*part) for part in parts])


def _causal(q_THE: Tensor, k_THE: Tensor, v_THE: Tensor) -> Tensor:
    """Attention within one document."""
    q_HTE, k_HTE, v_HTE = (x_THE.transpose(0, 1) for x_THE in (q_THE, k_THE, v_THE))
    return F.scaled_dot_product_attention(q_HTE, k_HTE, v_HTE, is_causal=True).transpose(0, 1)
