"""Attention in plain torch: any device, the definition of correct, and the CPU's default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    import torch

    from octavo_registry import AttentionBackend, CacheSpec

OCTAVO_API = "1"


@hookimpl
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    """Add "torch"."""
    backends.add("torch", "octavo_plugins.attention.torch.backend:TorchAttention")


@hookimpl(trylast=True)
def select_attention_backend(spec: CacheSpec, device: torch.device) -> str | None:
    """Take what no other plugin has chosen: this one runs anywhere.

    But for encoded media as they are, which without a kernel for them cost more than they save, and
    for layers without a cache.
    """
    return None if spec.kind in ("media", "step") else "torch"
