"""Attention over one compressed key per token, which all heads share and whose part is the value.

A head's own keys and values would be products of the compressed ones with its part of kv_b_proj.
Instead its queries and results are multiplied by it, so that the cache is read as it is stored.

Axis suffixes: T tokens, D hidden, H query heads, N entries of a head's query that meet the
compressed key, P rotated ones, Q both, L entries of the compressed key, C both of a cached key,
V entries of a head's value, B those of a head in kv_b_proj (N + V).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.layers.attention import Attention
from octavo.layers.linear import ColumnParallelLinear, Linear, RowParallelLinear
from octavo.layers.loading import Source
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles
from octavo.layers.sharding import rank_shard
from octavo.layers.stored import StoredWeight, method_at
from octavo_kernels.rotary import rotary_
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Part, Shard, Site
from octavo_registry.step import Step

NORM_EPS = 1e-6
"""For norms of compressed queries and keys, whatever config.json says of the others."""


class LatentAttention(nn.Module):
    """Multi-head latent attention (arXiv:2405.04434) under the names of DeepSeek's checkpoints.

    Rotated entries are pairs (i, i + P / 2), as everywhere. kv_b_proj is multiplied as plain
    weights, which are made of quantized ones when these are loaded.
    """

    kv_b_proj: nn.Parameter
    """This rank's heads [H, B, L]; of quantized ones not there before they are loaded."""

    def __init__(self, name: str, spec: ModelSpec, *, scale: float) -> None:
        super().__init__()
        config = spec.config
        hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
        bias = config.get("attention_bias", False)
        self.name = name
        self.plain_dim = config["qk_nope_head_dim"]
        self.rotary_dim = config["qk_rope_head_dim"]
        self.latent_dim = config["kv_lora_rank"]
        self.value_dim = config["v_head_dim"]
        self.query_rank = config.get("q_lora_rank") or 0
        query_outputs = heads * (self.plain_dim + self.rotary_dim)
        # What is compressed is the same on every rank; queries and keys are one product.
        compressed = {"kv_a_proj_with_mqa": self.latent_dim + self.rotary_dim}
        if self.query_rank:
            compressed = {"q_a_proj": self.query_rank, **compressed}
        self.qkv_a_proj = Linear(
            f"{name}.qkv_a_proj",
            Shard.whole(hidden_size),
            [(f"{name}.{child}", Shard.whole(size)) for child, size in compressed.items()],
            bias=bias,
            spec=spec,
        )
        if self.query_rank:
            self.q_a_layernorm = RMSNorm(
                f"{name}.q_a_layernorm", self.query_rank, NORM_EPS, spec=spec
            )
        child = "q_b_proj" if self.query_rank else "q_proj"
        self.q_proj = ColumnParallelLinear(
            f"{name}.{child}",
            self.query_rank or hidden_size,
            {child: query_outputs},
            bias=False,
            spec=spec,
        )
        self.kv_a_layernorm = RMSNorm(
            f"{name}.kv_a_layernorm", self.latent_dim, NORM_EPS, spec=spec
        )
        self.heads = rank_shard(heads, spec, f"attention heads of {name}")
        rows = self.heads.scaled(self.plain_dim + self.value_dim)
        child = f"{name}.kv_b_proj"
        latent = Shard.whole(self.latent_dim)
        site = Site(name=child, kind="latent", inputs=latent, parts=(Part(child, rows),))
        method = method_at(site, spec.quantization)
        self.kv_b_stored: StoredWeight | None = None
        if method is None:
            shape = (self.heads.size, self.plain_dim + self.value_dim, self.latent_dim)
            empty_HBL = torch.empty(shape, dtype=spec.dtype, device=spec.device)
            self.kv_b_proj = nn.Parameter(empty_HBL, requires_grad=False)
        else:
            self.register_parameter("kv_b_proj", None)
            self.kv_b_stored = StoredWeight(method, site, spec)
        self._adapters = None if spec.adapters is None else spec.adapters.of_latent(self)
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=1,
            head_dim=self.latent_dim + self.rotary_dim,
            latent_value_dim=self.latent_dim,
            spec=spec,
            scale=scale,
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj", heads * self.value_dim, hidden_size, bias=bias, spec=spec
        )

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        return self.o_proj.add_to(residual_TD, self.attend(x_TD, angles, step))

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """What goes into ``o_proj``: the results of this rank's heads, side by side."""
        compressed = self.qkv_a_proj(x_TD)
        q_THQ = self.q_proj(
            self.q_a_layernorm(compressed[:, : self.query_rank]) if self.query_rank else x_TD
        ).unflatten(-1, (self.heads.size, -1))
        k_TC = compressed[:, self.query_rank :]
        rotary_(q_THQ[..., self.plain_dim :], *angles)
        rotary_(k_TC[:, self.latent_dim :].unsqueeze(1), *angles)
        k_TL = self.kv_a_layernorm(k_TC[:, : self.latent_dim])
        out_THL = self.attention(
            self._absorbed(q_THQ),
            torch.cat((k_TL, k_TC[:, self.latent_dim :]), dim=-1).unsqueeze(1),
            None,
            step,
        )
        value_HVL = self.kv_b_proj[:, self.plain_dim :]
        out_HTL = out_THL.transpose(0, 1)
        out_HTV = torch.bmm(out_HTL, value_HVL.mT)
        if self._adapters is not None:
            out_HTV = self._adapters.add_to_values_(out_HTV, out_HTL)
        return out_HTV.transpose(0, 1).flatten(1)

    def _absorbed(self, q_THQ: Tensor) -> Tensor:
        """Queries that meet cached keys instead of each head's own; [T, H, C]."""
        key_HNL = self.kv_b_proj[:, : self.plain_dim]
        q_HTN = q_THQ[..., : self.plain_dim].transpose(0, 1)
        q_HTL = torch.bmm(q_HTN, key_HNL)
        if self._adapters is not None:
            q_HTL = self._adapters.add_to_queries_(q_HTL, q_HTN)
        return torch.cat((q_HTL.transpose(0, 1), q_THQ[..., self.plain_dim :]), dim=-1)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``; the other layers tell their own."""
        if self.kv_b_stored is not None:
            return
        rows = self.heads.scaled(self.plain_dim + self.value_dim)
        yield Source(
            name=f"{self.name}.kv_b_proj.weight",
            shape=(rows.total, self.latent_dim),
            part=(slice(rows.first, rows.first + rows.size),),
            target=self.kv_b_proj.data.flatten(0, 1),
            parameter=self.kv_b_proj,
        )

    def finish_weights(self) -> None:
        """See ``FinishesWeights``."""
        if self.kv_b_stored is not None:
            weight_HBL = self.kv_b_stored.plain().unflatten(0, (self.heads.size, -1))
            self.kv_b_proj = nn.Parameter(weight_HBL, requires_grad=False)
            self.kv_b_stored = None
