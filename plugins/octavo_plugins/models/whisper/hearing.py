"""How decoder layers read what the encoder has made of a sound: its keys and values, or itself.

Axis suffixes: T tokens, M positions of the encoder, D hidden, H heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo.layers.attention import CrossAttention, MediaAttention
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo.layers.loading import Source
from octavo.layers.sharding import rank_shard
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


def media_attention(name: str, spec: ModelSpec) -> MediaAttention | None:
    """Attention to the encoder's output itself; None where keys and values are kept.

    Weights that adapters change or that are quantized make keys, as do batches whose rows must not
    depend on each other.
    """
    config = spec.config
    cache = CacheSpec.media(
        heads=rank_shard(config["decoder_attention_heads"], spec, f"heads of {name}").size,
        width=config["d_model"],
        dtype=str(spec.dtype).removeprefix("torch."),
        rows=config["max_source_positions"],
    )
    is_plain = spec.adapters is None and spec.quantization is None and not spec.batch_invariant
    return MediaAttention(name, cache) if is_plain and spec.takes_cache(cache) else None


class EncoderAttention(nn.Module):
    """Projections around the attention over keys and values, which are made once for a sound."""

    def __init__(self, name: str, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        hidden, heads = config["d_model"], config["decoder_attention_heads"]
        self._head_dim = hidden // heads
        self.q_proj, self.k_proj, self.v_proj = (
            ColumnParallelLinear(f"{name}.{child}", hidden, {child: hidden}, bias=bias, spec=spec)
            for child, bias in (("q_proj", True), ("k_proj", False), ("v_proj", True))
        )
        self.attention = CrossAttention(
            f"{name}.attention",
            kv_heads=self.k_proj.out_features // self._head_dim,
            head_dim=self._head_dim,
            rows=config["max_source_positions"],
            spec=spec,
        )
        self.out_proj = RowParallelLinear(f"{name}.out_proj", hidden, hidden, bias=True, spec=spec)

    def keys_and_values(self, rows_MD: Tensor) -> tuple[str, Tensor, Tensor]:
        """Keys and values of what the encoder gave, [M, H, E]; first the name of their cache."""
        k_MHE, v_MHE = (
            linear(rows_MD).unflatten(-1, (-1, self._head_dim))
            for linear in (self.k_proj, self.v_proj)
        )
        return self.attention.name, k_MHE, v_MHE

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        q_THE = self.q_proj(x_TD).unflatten(-1, (-1, self._head_dim))
        return self.out_proj.add_to(residual_TD, self.attention(q_THE, step).flatten(1))


class RowsAttention(nn.Module):
    """Projections around the attention over the encoder's output itself.

    Those of keys are applied to the queries, and those of values to what is read.
    """

    def __init__(self, name: str, spec: ModelSpec, media: MediaAttention) -> None:
        super().__init__()
        hidden, heads = spec.config["d_model"], spec.config["decoder_attention_heads"]
        self._head_dim = hidden // heads
        self.q_proj = ColumnParallelLinear(
            f"{name}.q_proj", hidden, {"q_proj": hidden}, bias=True, spec=spec
        )
        self.k_proj = HeadWeights(f"{name}.k_proj", spec, bias=False)
        self.v_proj = HeadWeights(f"{name}.v_proj", spec, bias=True)
        self.media = media
        self.out_proj = RowParallelLinear(f"{name}.out_proj", hidden, hidden, bias=True, spec=spec)

    def add_to(self, residual_TD: Tensor, x_TD: Tensor, step: Step) -> Tensor:
        """Add the layer's result for x to the residual stream in place, and return it."""
        q_HTE = self.q_proj(x_TD).unflatten(-1, (-1, self._head_dim)).transpose(0, 1)
        q_HTD = torch.bmm(q_HTE, self.k_proj.weight_HED)
        read_THD: Tensor = self.media(q_HTD.transpose(0, 1), step, self._head_dim**-0.5)
        # The weights of a softmax add up to one, and so the bias of values is added once.
        assert self.v_proj.bias_HE is not None
        out_THE = self.v_proj.bias_HE.repeat(len(x_TD), 1, 1)
        out_THE.transpose(0, 1).baddbmm_(read_THD.transpose(0, 1), self.v_proj.weight_HED.mT)
        return self.out_proj.add_to(residual_TD, out_THE.flatten(1))


class HeadWeights(nn.Module):
    """A linear of the checkpoint by this rank's heads."""

    def __init__(self, name: str, spec: ModelSpec, *, bias: bool) -> None:
        super().__init__()
        self.name = name
        hidden, heads = spec.config["d_model"], spec.config["decoder_attention_heads"]
        self._heads = rank_shard(heads, spec, f"heads of {name}")
        self._head_dim = hidden // heads
        shape = (self._heads.size, self._head_dim)

        def empty(*sizes: int) -> nn.Parameter:
            tensor = torch.empty(sizes, dtype=spec.dtype, device=spec.device)
            return nn.Parameter(tensor, requires_grad=False)

        self.weight_HED = empty(*shape, hidden)
        self.bias_HE = empty(*shape) if bias else None

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        outputs = self._heads.scaled(self._head_dim)
        for child, parameter in (("weight", self.weight_HED), ("bias", self.bias_HE)):
            if parameter is not None:
                target = parameter.data.flatten(0, 1)
                yield Source(
                    name=f"{self.name}.{child}",
                    shape=(outputs.total, *target.shape[1:]),
                    part=(slice(outputs.first, outputs.first + outputs.size),),
                    target=target,
                    parameter=parameter,
                )
