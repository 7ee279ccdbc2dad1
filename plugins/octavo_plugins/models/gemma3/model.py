"""Gemma 3, text only: Gemma 2's layers with norms of queries and keys, and angles by kind of layer.

Axis suffixes: T tokens, D hidden, F frequencies, W kinds of layers (with a window, without).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.attention import SelfAttention, head_dim_of, window_of
from octavo.layers.decoder import CausalLM, rounded_to
from octavo.layers.rotary import Angles, RotaryEmbedding
from octavo_plugins.models.gemma2.model import (
    SandwichLayer,
    refuse_bidirectional,
    with_whole_norms,
)
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Gemma3(CausalLM):
    """Gemma3ForCausalLM."""

    def __init__(self, spec: ModelSpec) -> None:
        config = spec.config
        refuse_bidirectional(spec)
        super().__init__(
            spec,
            Gemma3Layer,
            RotaryByKind(spec),
            tied=True,
            embedding_scale=rounded_to(spec.dtype, config["hidden_size"] ** 0.5),
            logit_softcap=config.get("final_logit_softcapping"),
        )

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Fill this stage's parameters from a Hugging Face checkpoint."""
        return super().load(with_whole_norms(tensors))


class RotaryByKind(nn.Module):
    """The angles of both kinds of layers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        config = spec.config
        self.kinds = nn.ModuleList(
            RotaryEmbedding(
                head_dim_of(config),
                spec=replace(spec, config={**config, "rope_parameters": settings}),
            )
            for settings in rope_parameters_by_kind(config)
        )

    def forward(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [W, T, F]."""
        cos_WTF, sin_WTF = zip(*(kind(positions_T) for kind in self.kinds), strict=True)
        return torch.stack(cos_WTF), torch.stack(sin_WTF)


class Gemma3Layer(SandwichLayer):
    """Every sixth layer has no window, if config.json says nothing else."""

    def __init__(self, spec: ModelSpec, index: int) -> None:
        config, name = spec.config, f"model.layers.{index}"
        window = window_of(config, index, pattern=config.get("sliding_window_pattern", 6))
        attention = SelfAttention(
            f"{name}.self_attn",
            spec,
            window=window,
            scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
            norm_heads=True,
            bias=config.get("attention_bias", False),
        )
        super().__init__(name, spec, attention)
        self._kind = 0 if window is not None else 1

    def forward(self, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        """The residual stream after this layer, in place; ``angles`` are those of both kinds."""
        cos_WTF, sin_WTF = angles
        return super().forward(x_TD, (cos_WTF[self._kind], sin_WTF[self._kind]), step)


def rope_parameters_by_kind(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope settings of layers with a window and of those without, in new or old style."""
    by_kind = config.get("rope_parameters")
    if by_kind is not None:
        if by_kind.keys() != {"sliding_attention", "full_attention"}:
            raise ModelError(
                f"rope_parameters in config.json are {', '.join(by_kind)}; they must be "
                "sliding_attention and full_attention, each with settings of its own"
            )
        return by_kind["sliding_attention"], by_kind["full_attention"]
    return (
        {"rope_theta": config.get("rope_local_base_freq", 10_000.0)},
        {
            "rope_theta": config.get("rope_theta", 1_000_000.0),
            **(config.get("rope_scaling") or {}),
        },
    )
