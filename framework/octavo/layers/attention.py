"""Attention over the paged cache. Axes: T tokens, H query heads, K key/value heads, D head dim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.linear import QKVLinear, RowParallelLinear
from octavo.layers.loading import Source
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles
from octavo.layers.sharding import rank_shard
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Attention(nn.Module):
    """One layer's attention, done by whichever backend its cache group has in a step.

    ``name`` is its key in ``Model.cache_specs`` and ``Step.layers``; the head counts are those of
    this rank. A ``window`` makes the cache keep that many tokens only; there is none where
    ``ModelSpec.sees`` says what of its row a token sees. The norms are per head. With
    ``latent_value_dim`` a token's value is the beginning of its key, and v is None.
    """

    def __init__(
        self,
        name: str,
        *,
        kv_heads: int,
        head_dim: int,
        spec: ModelSpec,
        scale: float | None = None,
        window: int | None = None,
        latent_value_dim: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.window = window
        self._scale = head_dim**-0.5 if scale is None else scale
        self._softcap = softcap
        self.sinks = sinks
        self._alibi = alibi
        self.q_norm_D = None if q_norm is None else q_norm.weight
        self.k_norm_D = None if k_norm is None else k_norm.weight
        self._eps = 0.0 if q_norm is None else q_norm.eps
        dtype = str(spec.dtype).removeprefix("torch.")
        self._causal = spec.sees != "all"
        if spec.sees is not None:
            self.cache_spec = CacheSpec.in_step(
                kv_heads=kv_heads,
                head_dim=head_dim,
                dtype=dtype,
                window=window,
                sees=spec.sees,
                value_dim=latent_value_dim,
            )
        elif latent_value_dim is not None:
            self.cache_spec = CacheSpec.latent(
                key_dim=head_dim, value_dim=latent_value_dim, dtype=dtype
            )
        elif window is not None:
            self.cache_spec = CacheSpec.sliding(
                kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, window=window
            )
        else:
            self.cache_spec = CacheSpec.full(kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)

    def forward(
        self,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor | None,
        step: Step,
        angles: Angles | None = None,
    ) -> Tensor:
        """Normalise and turn queries and keys, store keys and values, attend; returns [T, H, D].

        ``angles`` are a ``RotaryEmbedding``'s of the step; q and k are overwritten.
        """
        cache = step.layers[self.name]
        cos_TF, sin_TF = angles or (None, None)
        return cache.backend.attend(
            q_THD,
            k_TKD,
            v_TKD,
            cache.view,
            step.groups[cache.group],
            scale=self._scale,
            causal=self._causal,
            window=self.window,
            softcap=self._softcap,
            sinks=self.sinks,
            alibi=self._alibi,
            transform=QKTransform(
                cos_TF=cos_TF,
                sin_TF=sin_TF,
                q_norm_D=self.q_norm_D,
                k_norm_D=self.k_norm_D,
                eps=self._eps,
            ),
        )


class CrossAttention(nn.Module):
    """Attention of all tokens of a sequence to the rows of its encoded media.

    Their keys and values are in the cache: ``AttendsAcross.cross_rows`` has made them.
    """

    def __init__(
        self, name: str, *, kv_heads: int, head_dim: int, rows: int, spec: ModelSpec
    ) -> None:
        super().__init__()
        self.name = name
        self._scale = head_dim**-0.5
        dtype = str(spec.dtype).removeprefix("torch.")
        self.cache_spec = CacheSpec.cross(
            kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, rows=rows
        )

    def forward(self, q_THD: Tensor, step: Step) -> Tensor:
        """What the queries make of the rows; [T, H, D]."""
        cache = step.layers[self.name]
        group = step.groups[cache.group]
        return cache.backend.attend(
            q_THD, None, None, cache.view, group, scale=self._scale, causal=False
        )


class MediaAttention(nn.Module):
    """Attention of all heads to the rows of a sequence's encoded media themselves.

    Where a head's keys are products of the rows with its part of a weight, its queries can be
    multiplied by it instead, and what is read of the rows by its part of the values' weight. So the
    cache has a row once, for all layers, and reading it costs half of what keys and values do.
    """

    def __init__(self, name: str, spec: CacheSpec) -> None:
        super().__init__()
        self.name = name
        self.cache_spec = spec

    def forward(self, q_THW: Tensor, step: Step, scale: float) -> Tensor:
        """What the queries make of the rows; [T, H, W], as wide as they are."""
        cache = step.layers[self.name]
        group = step.groups[cache.group]
        return cache.backend.attend(q_THW, None, None, cache.view, group, scale=scale, causal=False)


class SelfAttention(nn.Module):
    """Projections around an ``Attention`` over rotated heads, as most decoders have them.

    ``norm_heads`` gives queries and keys RMS norms; ``sinks`` gives each head a logit that takes
    part in the softmax without a value. Both come from the checkpoint, where queries, keys and
    values are three linears, or with ``stored_fused`` one, qkv_proj. ``bias`` is that of all
    linears, unless ``out_bias`` says otherwise for the last.
    """

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        *,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        norm_heads: bool = False,
        sinks: bool = False,
        bias: bool = False,
        out_bias: bool | None = None,
        stored_fused: bool = False,
    ) -> None:
        super().__init__()
        config = spec.config
        heads, head_dim = config["num_attention_heads"], head_dim_of(config)
        self.qkv_proj = QKVLinear(
            f"{name}.qkv_proj",
            config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            bias=bias,
            spec=spec,
            stored_fused=stored_fused,
        )
        eps = float(config.get("rms_norm_eps", 1e-6))
        self.q_norm = RMSNorm(f"{name}.q_norm", head_dim, eps, spec=spec) if norm_heads else None
        self.k_norm = RMSNorm(f"{name}.k_norm", head_dim, eps, spec=spec) if norm_heads else None
        self.sinks = HeadSinks(f"{name}.sinks", heads, spec=spec) if sinks else None
        self.attention = Attention(
            f"{name}.attention",
            kv_heads=self.qkv_proj.kv_heads,
            head_dim=head_dim,
            spec=spec,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=None if self.sinks is None else self.sinks.weight,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj",
            heads * head_dim,
            config["hidden_size"],
            bias=bias if out_bias is None else out_bias,
            spec=spec,
        )

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The layer's result [T, D], without the residual."""
        out_TD: Tensor = self.o_proj(self.attend(x_TD, angles, step))
        return out_TD

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        return self.o_proj.add_to(residual_TD, self.attend(x_TD, angles, step))

    def attend(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """What goes into ``o_proj``: the results of this rank's heads, side by side."""
        q_THD, k_TKD, v_TKD = self.project(x_TD)
        out_THD: Tensor = self.attention(q_THD, k_TKD, v_TKD, step, angles)
        return out_THD.flatten(1)

    def project(self, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, K, D]; a subclass may change them."""
        return self.qkv_proj.heads_of(x_TD)


class HeadSinks(nn.Module):
    """A logit for each of this rank's query heads."""

    def __init__(self, name: str, heads: int, *, spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        self._shard = rank_shard(heads, spec, f"attention heads of {name}")
        empty_H = torch.empty(self._shard.size, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(empty_H, requires_grad=False)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``; in checkpoints it is a tensor without a module."""
        shard = self._shard
        yield Source(
            name=self.name,
            shape=(shard.total,),
            part=(slice(shard.first, shard.first + shard.size),),
            target=self.weight.data,
            parameter=self.weight,
        )


def head_dim_of(config: Mapping[str, Any]) -> int:
    """Given, or an equal part of the hidden size."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def window_of(config: Mapping[str, Any], index: int, *, pattern: int = 0) -> int | None:
    """Tokens that a layer sees, None for all.

    The config's ``layer_types`` say which layers have the window. Without them every ``pattern``-th
    layer has none; with a pattern of 0 all have it.
    """
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return None
    layer_types = config.get("layer_types")
    if layer_types is None:
        return None if pattern and (index + 1) % pattern == 0 else int(window)
    if layer_types[index] not in ("full_attention", "sliding_attention"):
        raise ModelError(
            f"layer_types[{index}]={layer_types[index]!r} in config.json is not known; "
            "known: full_attention, sliding_attention"
        )
    return int(window) if layer_types[index] == "sliding_attention" else None


def cache_specs(model: nn.Module) -> dict[str, CacheSpec]:
    """What ``Model.cache_specs`` returns: the cache of each attention layer in the model."""
    kinds = (Attention, CrossAttention, MediaAttention)
    layers = (module for module in model.modules() if isinstance(module, kinds))
    return {layer.name: layer.cache_spec for layer in layers}
