"""Attention backends: they own the layout inside a cache block and every operation on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo_registry.cache import CacheSpec
    from octavo_registry.step import AttentionStep


@runtime_checkable
class AttentionBackend(Protocol):
    """Writes keys and values into pages and attends over them.

    A layout's outermost axis is the block, and a block's bytes are one or two contiguous runs, so
    that the framework copies, swaps and transfers blocks as bytes. Instances are made once per
    worker, without arguments.
    """

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """Return None when layers of this spec can run on the device, else the reason.

        Called once per cache group at load; a spec field that is not known must be refused.
        """
        ...

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Bytes that one block of one layer takes."""
        ...

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Any:
        """Make the layer's view of its pages, a uint8 tensor [blocks, page_bytes]."""
        ...

    def plan(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Prepare what all layers of a group share in a step; its result is ``step.plan``."""
        ...

    def attend(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKD: Tensor | None,
        view: Any,
        step: AttentionStep,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi: Tensor | None = None,
    ) -> Tensor:
        """Store k and v at ``step.slots_T``, then attend; returns [T, heads, value_dim].

        k and v of None mean that the cache is read only. A keyword that is not supported must
        raise, never be ignored.
        """
        ...
