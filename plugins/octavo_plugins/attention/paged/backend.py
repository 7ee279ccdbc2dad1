"""The ``paged`` attention backend.

Axis suffixes: T tokens of a step, H query heads, K key/value heads, D head dim, B blocks, C pieces
of a key of 16 bytes, X entries of a piece, N tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels.paged_attention import BLOCK_TOKENS, MAX_HEAD_DIM, paged_attention
from octavo_kernels.store_kv import store_kv_paged
from octavo_plugins.attention.refusals import check_block_tokens, check_window, misfit
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from octavo_registry.step import AttentionStep

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
MIN_CAPABILITY = (7, 5)
"""The oldest that CUDA 13 compiles for."""


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's cache: a block's keys, then its values."""

    keys_BKCNX: Tensor
    values_BKDN: Tensor


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What the kernels are told of a step: bounds that choose how they cut the work."""

    max_context_len: int
    max_query_len: int
    kept: int | None
    """Tokens that the group's cache keeps; None: all."""
    version: int | None


class PagedAttention:
    """Keys [kv_heads, dim / x, block, x], then values [kv_heads, dim, block]: one run a block.

    On a CPU its operations are their references, slow and for tests.
    """

    most_recorded_queries = 1
    batch_invariant = True

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """See ``AttentionBackend``, as for all methods here."""
        if device.type not in ("cuda", "cpu"):
            return f"device {device} is neither cuda nor cpu"
        if reason := misfit(spec, ("full", "window", "cross"), DTYPES):
            return reason
        piece = _piece(spec)
        if spec.key_dim > MAX_HEAD_DIM or spec.key_dim % piece:
            return (
                f"key_dim={spec.key_dim} must be a multiple of {piece}, the entries of "
                f"{spec.dtype} in 16 bytes, and {MAX_HEAD_DIM} at most"
            )
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
            return f"{device} is older than compute capability 7.5"
        return None

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Keys and values of a block's tokens, and nothing else."""
        check_block_tokens("paged", block_tokens, BLOCK_TOKENS)
        return 2 * spec.kv_heads * spec.key_dim * block_tokens * DTYPES[spec.dtype].itemsize

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Pages:
        """The pages' halves."""
        heads, dim, piece = spec.kv_heads, spec.key_dim, _piece(spec)
        half = self.page_bytes(spec, block_tokens) // 2
        keys, values = (
            part.view(DTYPES[spec.dtype]) for part in (pages[:, :half], pages[:, half : 2 * half])
        )
        return Pages(
            keys.view(-1, heads, dim // piece, block_tokens, piece),
            values.view(-1, heads, dim, block_tokens),
        )

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> PreparedStep:
        """The step's bounds."""
        return PreparedStep(
            max_context_len=int(step.bounds.context_lens_R.max(initial=0)),
            max_query_len=int(step.bounds.query_lens_R.max(initial=0)),
            kept=spec.window,
            version=1 if step.batch_invariant else None,
        )

    def attend(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKD: Tensor | None,
        view: Pages,
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
        """Softmax in float32; each query sees its row's cached positions up to its own."""
        prepared: PreparedStep = step.prepared
        check_window("paged", window, prepared.kept, causal=causal)
        if k_TKD is not None and v_TKD is not None:
            norm_and_rotation = transform or QKTransform()
            store_kv_paged(
                *(q_THD, k_TKD, v_TKD, view.keys_BKCNX, view.values_BKDN, step.slots_T),
                cos_TF=norm_and_rotation.cos_TF,
                sin_TF=norm_and_rotation.sin_TF,
                q_norm_D=norm_and_rotation.q_norm_D,
                k_norm_D=norm_and_rotation.k_norm_D,
                eps=norm_and_rotation.eps,
            )
        elif transform is not None:
            raise PluginError("attention backend 'paged': transform needs keys and values to store")
        return paged_attention(
            *(q_THD, view.keys_BKCNX, view.values_BKDN, step.table_SB, step.token_rows_T),
            *(step.table_rows_R, step.context_lens_R, step.positions_T),
            torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device),
            max_context_len=prepared.max_context_len,
            max_query_len=prepared.max_query_len,
            scale=scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sinks_H=None if sinks is None else sinks.float(),
            alibi_H=None if alibi is None else alibi.float(),
            version=prepared.version,
        )

    def store(self, k_MKD: Tensor, v_MKD: Tensor, view: Pages, slots_M: Tensor) -> None:
        """See ``StoresRows``; there are no queries, which would be left as they are."""
        store_kv_paged(k_MKD, k_MKD, v_MKD, view.keys_BKCNX, view.values_BKDN, slots_M)


def _piece(spec: CacheSpec) -> int:
    """Entries in 16 bytes."""
    return 16 // DTYPES[spec.dtype].itemsize
