"""Attention over the paged cache. Axes: T tokens, H query heads, K key/value heads, D head dim."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Angles
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Attention(nn.Module):
    """One layer's attention, done by whichever backend its cache group has in a step.

    ``name`` is its key in ``Model.cache_specs`` and ``Step.layers``; the head counts are those of
    this rank. A ``window`` makes the cache keep that many tokens only. The norms are per head.
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
        self._sinks = sinks
        self._alibi = alibi
        self._q_norm_D = None if q_norm is None else q_norm.weight
        self._k_norm_D = None if k_norm is None else k_norm.weight
        self._eps = 0.0 if q_norm is None else q_norm.eps
        dtype = str(spec.dtype).removeprefix("torch.")
        self.cache_spec = (
            CacheSpec.full(kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
            if window is None
            else CacheSpec.sliding(kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, window=window)
        )

    def forward(
        self,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
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
            window=self.window,
            softcap=self._softcap,
            sinks=self._sinks,
            alibi=self._alibi,
            transform=QKTransform(
                cos_TF=cos_TF,
                sin_TF=sin_TF,
                q_norm_D=self._q_norm_D,
                k_norm_D=self._k_norm_D,
                eps=self._eps,
            ),
        )


def cache_specs(model: nn.Module) -> dict[str, CacheSpec]:
    """What ``Model.cache_specs`` returns: the cache of each attention layer in the model."""
    layers = (module for module in model.modules() if isinstance(module, Attention))
    return {layer.name: layer.cache_spec for layer in layers}
