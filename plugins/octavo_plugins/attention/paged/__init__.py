"""PagedAttention kernels: any CUDA device that torch still knows, and float32 everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_registry import LazyRegistry, hookimpl

if TYPE_CHECKING:
    import torch

    from octavo_registry import AttentionBackend, CacheSpec

OCTAVO_API = "1"


@hookimpl
def register_attention_backends(backends: LazyRegistry[AttentionBackend]) -> None:
    """Add "paged"."""
    backends.add("paged", "octavo_plugins.attention.paged.backend:PagedAttention")


# After plugins for one kind of device, which are not trylast; before "torch", which is trylast too
# but registered later, since plugins are loaded in the order of their names.
@hookimpl(trylast=True)
def select_attention_backend(spec: CacheSpec, device: torch.device) -> str | None:
    """Take what the kernels can do on a CUDA device."""
    if device.type != "cuda":
        return None
    from octavo_plugins.attention.paged.backend import PagedAttention

    return "paged" if PagedAttention().supports(spec, device) is None else None
