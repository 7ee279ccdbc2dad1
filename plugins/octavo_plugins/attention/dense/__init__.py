"""Attention within a step in plain torch: any device, for layers whose keys nobody keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    from octavo_registry import AttentionBackend, CacheSpec

OCTAVO_API = "1"


@hookimpl
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    """Add "dense"."""
    backends.add("dense", "octavo_plugins.attention.dense.backend:DenseAttention")


@hookimpl(trylast=True)
def select_attention_backend(spec: CacheSpec) -> str | None:
    """Take layers whose keys live for one step, where no other plugin has."""
    return "dense" if spec.kind == "step" else None
