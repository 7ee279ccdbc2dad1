"""Attention on Hopper GPUs: tensor-core kernels for decode and prefill, their default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    import torch

    from octavo_registry import AttentionBackend, CacheSpec

OCTAVO_API = "1"


@hookimpl
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    """Add "hopper"."""
    backends.add("hopper", "octavo_plugins.attention.hopper.backend:HopperAttention")


@hookimpl
def select_attention_backend(spec: CacheSpec, device: torch.device, query_dtype: str) -> str | None:
    """Take what the kernels can do on the GPUs they are for."""
    if device.type != "cuda" or query_dtype == "float32":  # of 32 bits with a cache of 8
        return None
    from octavo_plugins.attention.hopper.backend import HopperAttention

    return "hopper" if HopperAttention().supports(spec, device) is None else None
