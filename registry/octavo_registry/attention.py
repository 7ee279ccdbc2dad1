"""Attention backends: they own the layout inside a cache block and every operation on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo_registry.cache import CacheSpec
    from octavo_registry.step import AttentionStep


@dataclass(frozen=True, slots=True, kw_only=True)
class QKTransform:
    """What is done to queries and keys before keys are stored: a norm by head, then a rotation.

    A backend may do it in the kernel that stores; ``octavo_kernels.store_kv`` does so for layouts
    in which a token's key is one run.
    """

    cos_TF: Tensor | None = None
    """Cosines and sines of each token's angles; each pair (x[i], x[i + F]) of a head turns."""
    sin_TF: Tensor | None = None
    q_norm_D: Tensor | None = None
    """Weights of RMS norms over each head."""
    k_norm_D: Tensor | None = None
    eps: float = 1e-6


@runtime_checkable
class AttentionBackend(Protocol):
    """Writes keys and values into pages and attends over them.

    A layout's outermost axis is the block, and a block's bytes are one or two contiguous runs, so
    that the framework copies, swaps and transfers blocks as bytes. Instances are made without
    arguments, one for each cache spec that a worker's layers have.
    """

    most_recorded_queries: int
    """Tokens that a row may have at most in a step that is recorded in a CUDA graph and run again
    with other lengths and tables; 0: no step may be recorded. Of ``step.bounds``, ``prepare`` and
    ``attend`` then take no more than the number of rows and an upper bound."""
    batch_invariant: bool
    """Whether steps that ask for ``batch_invariant`` results get them; else they are refused."""

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """Return None when layers of this spec can run on the device, else the reason.

        Called once per cache group at load; a spec field that is not known must be refused.
        """
        ...

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Bytes that one block of one layer takes."""
        ...

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Any:
        """Make the layer's view of its pages, a uint8 tensor [blocks, page_bytes].

        With a cache of kind "media" it is [lanes, blocks, bytes]: a block's ``block_tokens`` rows
        lie lane by lane, as many in each.
        """
        ...

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Make what all layers of a group share in a step; its result is ``step.prepared``."""
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
        transform: QKTransform | None = None,
    ) -> Tensor:
        """Store k and v at ``step.slots_T``, then attend; returns [T, heads, value_dim].

        ``transform`` comes first; q and k may be overwritten by it. k and v of None mean that the
        cache is read only; with a latent cache v is always None, as values are parts of keys. A
        keyword that is not supported must raise, never be ignored.
        """
        ...


@runtime_checkable
class StoresRows(Protocol):
    """A backend for caches of kind "cross" or "media", whose layers attend with k and v of None."""

    def store(self, k_MKD: Tensor, v_MKD: Tensor | None, view: Any, slots_M: Tensor) -> None:
        """Write keys and values of encoded media at these slots, as ``attend`` does of tokens.

        Of kind "media", k is the rows [M, 1, D] and v is None.
        """
        ...


@runtime_checkable
class ReadsMedia(StoresRows, Protocol):
    """A backend with a kernel for caches of kind "media".

    Without it keys and values are kept, whatever ``supports`` says: rows that are read without a
    kernel for them cost more than they save.
    """

    fewest_media_rows: int
    """From so many sequences at a time on it reads rows faster than keys and values."""
