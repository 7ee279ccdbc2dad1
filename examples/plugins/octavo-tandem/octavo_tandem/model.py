"""Tandem: attention and MLP side by side on one norm, added to the residual stream together.

Axis suffixes: T tokens of a step, D hidden, H query heads, K key/value heads, R rows to sample,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.attention import Attention, cache_specs
from octavo.layers.embedding import VocabParallelEmbedding
from octavo.layers.linear import ColumnParallelLinear, QKVLinear, RowParallelLinear
from octavo.layers.loading import Source, load_weights
from octavo.layers.logits import LMHead
from octavo.layers.norm import LayerNorm
from octavo.layers.rotary import Angles, RotaryEmbedding
from octavo_registry import CacheSpec, MediaRows, ModelSpec, Step


class Tandem(nn.Module):
    """Its layers know their names in checkpoints, so that ``load`` is one call."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        vocab_size, hidden_size = config["vocab_size"], config["hidden_size"]
        head_dim = hidden_size // config["num_attention_heads"]
        rotary_dim = int(head_dim * config["partial_rotary_factor"])
        self.embed_tokens = VocabParallelEmbedding(
            "model.embed_tokens", vocab_size, hidden_size, spec=spec
        )
        self.rotary = RotaryEmbedding(rotary_dim, spec=spec)
        self.layers = nn.ModuleList(Layer(spec, i) for i in range(config["num_hidden_layers"]))
        self.norm = LayerNorm("model.norm", hidden_size, config["layer_norm_eps"], spec=spec)
        self.lm_head = LMHead(
            "lm_head", vocab_size, hidden_size, spec=spec, tied_to=self.embed_tokens
        )
        self._logit_scale = config["logit_scale"]

    def cache_specs(self) -> dict[str, CacheSpec]:
        """Collect what the attention layers keep."""
        return cache_specs(self)

    def embed(self, tokens_T: Tensor, media: MediaRows | None) -> Tensor:
        """Token ids to the first hidden state."""
        x_TD: Tensor = self.embed_tokens(tokens_T)
        return x_TD

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """All layers, for all rows of the step at once: no loop over requests stands here."""
        angles = self.rotary(step.positions_AT[0])
        for layer in self.layers:
            x_TD = layer(x_TD, angles, step)
        out_TD: Tensor = self.norm(x_TD)
        return out_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Hidden states of the rows to sample to logits."""
        logits_RV: Tensor = self.lm_head(hidden_RD) * self._logit_scale
        return logits_RV

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill the parameters; a tensor that fits nothing is an error."""
        return load_weights(self, tensors)


class Layer(nn.Module):
    """One norm, whose result attention and MLP both read, and one scale of their sum."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        config, name = spec.config, f"model.layers.{index}"
        hidden_size, eps = config["hidden_size"], config["layer_norm_eps"]
        self.norm = LayerNorm(f"{name}.norm", hidden_size, eps, spec=spec)
        self.attention = SelfAttention(f"{name}.attention", spec)
        self.mlp = SquaredReluMLP(f"{name}.mlp", spec)
        self.scale = ChannelScale(f"{name}.scale", hidden_size, spec=spec)

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The residual stream after this layer."""
        normed_TD = self.norm(x_TD)
        attended_TD = self.attention(normed_TD, angles, step)
        out_TD: Tensor = x_TD + self.scale(attended_TD + self.mlp(normed_TD))
        return out_TD


class SelfAttention(nn.Module):
    """Many query heads on few key/value heads; the first part of each head is turned."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
        self.head_dim = hidden_size // heads
        self.qkv_proj = QKVLinear(
            f"{name}.qkv_proj",
            hidden_size,
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=self.head_dim,
            bias=False,
            spec=spec,
        )
        self.cached = Attention(
            f"{name}.cached", kv_heads=self.qkv_proj.kv_heads, head_dim=self.head_dim, spec=spec
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj", hidden_size, hidden_size, bias=False, spec=spec
        )

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The layer's result, without the residual."""
        q_THD, k_TKD, v_TKD = self.qkv_proj.heads_of(x_TD)
        out_THD = self.cached(q_THD, k_TKD, v_TKD, step, angles)  # turns queries and keys first
        out_TD: Tensor = self.o_proj(out_THD.flatten(1))
        return out_TD


class SquaredReluMLP(nn.Module):
    """down(relu(up(x)) ** 2)."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        hidden_size, size = spec.config["hidden_size"], spec.config["intermediate_size"]
        self.up_proj = ColumnParallelLinear(
            f"{name}.up_proj", hidden_size, {"up_proj": size}, bias=False, spec=spec
        )
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", size, hidden_size, bias=False, spec=spec
        )

    def forward(self, x_TD: Tensor) -> Tensor:
        """The layer's result, without the residual."""
        out_TD: Tensor = self.down_proj(F.relu(self.up_proj(x_TD)).square())
        return out_TD


class ChannelScale(nn.Module):
    """A layer that Octavo does not have: ``sources`` tells what fills its parameter."""

    def __init__(self, name: str, size: int, *, spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        empty_D = torch.empty(size, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(empty_D, requires_grad=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Each channel of x times its own factor."""
        return x_TD * self.weight

    def sources(self) -> Iterator[Source]:
        """One tensor of the checkpoint, whole."""
        yield Source(
            name=f"{self.name}.weight",
            shape=tuple(self.weight.shape),
            part=(slice(None),),
            target=self.weight.data,
            parameter=self.weight,
        )
