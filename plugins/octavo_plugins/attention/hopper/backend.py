"""The ``hopper`` attention backend.

Axis suffixes: T tokens of a step, R rows, H query heads, K key/value heads, D head dim, B blocks,
N tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import hopper_decode, hopper_latent, hopper_prefill
from octavo_kernels.hopper_decode import decode
from octavo_kernels.hopper_prefill import prefill
from octavo_kernels.store_kv import store_kv
from octavo_plugins.attention.media import MediaPages, row_bytes_of
from octavo_plugins.attention.refusals import check_block_tokens, check_window, misfit
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from octavo_registry.step import AttentionStep, StepBounds

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}
HEAD_DIMS = tuple(d for d in hopper_decode.HEAD_DIMS if d in hopper_prefill.HEAD_DIMS)
BLOCK_TOKENS = tuple(n for n in hopper_decode.BLOCK_TOKENS if n in hopper_prefill.BLOCK_TOKENS)
NO_TRANSFORM = QKTransform()


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's cache; a page has all heads' keys, then all values, each head in one run."""

    cache: Tensor
    """[B, 2, K, N, D]"""
    keys_BKND: Tensor
    values_BKND: Tensor


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """The first rows have one token each and are decoded, the others are prefilled."""

    step: AttentionStep
    """As the kernels, which are causal, take it: in a cross group each token is a row of its own,
    the last of what its row sees."""
    is_cross: bool
    num_decoded: int
    num_rows: int
    decode_table_rows_R: Tensor
    decode_context_lens_R: Tensor
    kept_tokens: int | None
    """What the group's cache keeps of a row, None for all."""
    prefill_context: int
    """No row that is prefilled has a longer one."""


class HopperAttention:
    """Blocks of [2, kv_heads, block_tokens, head_dim]."""

    most_recorded_queries = 1
    batch_invariant = True
    fewest_media_rows = 16
    """A tile of the kernel has as many; one of fewer takes as long."""

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """See ``AttentionBackend``, as for all methods here."""
        if reason := misfit(spec, ("full", "window", "cross", "media"), DTYPES):
            return reason
        if spec.kind == "media":
            if spec.dtype == "fp8":
                return "encoded media are not kept in 8 bits"
            if reason := hopper_latent.misfit(spec.kv_heads, spec.key_dim):
                return reason
        elif spec.key_dim not in HEAD_DIMS:
            return f"key_dim={spec.key_dim} must be one of {HEAD_DIMS}"
        if device.type != "cuda":
            return f"device={str(device)!r} is not a GPU"
        capability = torch.cuda.get_device_capability(device)
        if capability != (9, 0):
            return f"the GPU's compute capability is {capability}, not (9, 0)"
        return None

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Keys and values of a block's tokens, and nothing else."""
        if spec.kind == "media":
            return row_bytes_of(spec) * block_tokens
        check_block_tokens("hopper", block_tokens, BLOCK_TOKENS)
        return 2 * spec.kv_heads * block_tokens * spec.key_dim * DTYPES[spec.dtype].itemsize

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Pages | MediaPages:
        """The pages, whose blocks may lie further apart than their bytes, by axes."""
        if spec.kind == "media":
            return MediaPages.of(pages, spec)
        shape = (len(pages), 2, spec.kv_heads, block_tokens, spec.key_dim)
        cache = pages.view(DTYPES[spec.dtype]).view(shape)
        return Pages(cache, cache[:, 0], cache[:, 1])

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> PreparedStep:
        """Find where the rows of one token end; the kernels share out work by device lengths."""
        if spec.rows is not None:
            step = _by_token(step)
        query_lens_R = step.bounds.query_lens_R
        longer_R = np.flatnonzero(query_lens_R != 1)
        if step.batch_invariant:
            # The prefill kernel can sum up a query's keys in the same order in every batch; decode
            # shares out all rows' keys evenly.
            longer_R = np.zeros(1, np.int64)
        num_decoded = int(longer_R[0]) if len(longer_R) else len(query_lens_R)
        return PreparedStep(
            step,
            spec.rows is not None,
            num_decoded,
            len(query_lens_R),
            step.table_rows_R[:num_decoded],
            step.context_lens_R[:num_decoded],
            spec.window,
            int(step.bounds.context_lens_R[num_decoded:].max(initial=0)),
        )

    def attend(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKD: Tensor | None,
        view: Pages | MediaPages,
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
        """One launch for rows of one token; for longer ones, one to store and one to attend."""
        prepared: PreparedStep = step.prepared
        if q_THD.dtype == torch.float32:  # an fp8 cache does not tell ``supports``
            raise PluginError(
                "attention backend 'hopper' takes queries of 16 bits, and these are float32; name "
                "'paged', which reads an fp8 cache for them"
            )
        step = prepared.step
        if alibi is not None or causal == prepared.is_cross:
            raise PluginError(
                f"attention backend 'hopper' knows neither alibi nor causal={causal}; name another"
            )
        if isinstance(view, MediaPages):
            return _attend_media(q_THD, view, step, scale)
        check_window("hopper", window, prepared.kept_tokens, causal=True)
        by = transform or NO_TRANSFORM
        num_decoded, is_mixed = prepared.num_decoded, prepared.num_decoded < prepared.num_rows
        new: dict[str, Any] = {}
        if k_TKD is not None and v_TKD is not None:
            # Decoding stores its rows' tokens itself, if it knows the rotation: one launch less.
            turns_all = by.cos_TF is None or 2 * by.cos_TF.shape[1] == q_THD.shape[2]
            if num_decoded and turns_all:
                new = _new_tokens(k_TKD, v_TKD, step.slots_T, by, num_decoded, is_mixed)
            first = num_decoded if new else 0
            if is_mixed or not new:
                store_kv(
                    q_THD[first:],
                    k_TKD[first:],
                    v_TKD[first:],
                    view.keys_BKND,
                    view.values_BKND,
                    step.slots_T[first:],
                    cos_TF=None if by.cos_TF is None else by.cos_TF[first:],
                    sin_TF=None if by.sin_TF is None else by.sin_TF[first:],
                    q_norm_D=by.q_norm_D,
                    k_norm_D=by.k_norm_D,
                    eps=by.eps,
                )
        elif transform is not None:
            raise PluginError(
                "attention backend 'hopper' transforms queries as it stores keys; there are none"
            )
        out_THD = q_THD.new_empty(q_THD.shape)
        if num_decoded:
            decode(
                q_THD[:num_decoded] if is_mixed else q_THD,
                view.cache,
                step.table_SB,
                prepared.decode_table_rows_R,
                prepared.decode_context_lens_R,
                out_THD[:num_decoded] if is_mixed else out_THD,
                scale=scale,
                window=window,
                softcap=softcap,
                sinks_H=sinks,
                **new,
            )
        if is_mixed:
            prefill(
                q_THD,
                view.cache,
                step.table_SB,
                step.table_rows_R,
                step.query_starts_R1,
                step.context_lens_R,
                out_THD,
                first_row=num_decoded,
                query_lens_R=step.bounds.query_lens_R,
                scale=scale,
                window=window,
                softcap=softcap,
                sinks_H=sinks,
                max_context=prepared.prefill_context,
                batch_invariant=step.batch_invariant,
            )
        return out_THD

    def store(
        self, k_MKD: Tensor, v_MKD: Tensor | None, view: Pages | MediaPages, slots_M: Tensor
    ) -> None:
        """See ``StoresRows``; there are no queries, which would be left as they are."""
        if isinstance(view, MediaPages):
            view.store(k_MKD[:, 0], slots_M)
            return
        assert v_MKD is not None
        store_kv(k_MKD, k_MKD, v_MKD, view.keys_BKND, view.values_BKND, slots_M)


def _attend_media(q_THD: Tensor, view: MediaPages, step: AttentionStep, scale: float) -> Tensor:
    """Heads outermost, as the products around it have them."""
    q_HTD = q_THD.transpose(0, 1)
    out_HTD = torch.empty(q_HTD.shape, dtype=q_THD.dtype, device=q_THD.device)
    hopper_latent.attend(
        q_HTD,
        view.cache_LBND,
        step.table_SB,
        step.table_rows_R,
        step.context_lens_R,
        out_HTD,
        scale=scale,
    )
    return out_HTD.transpose(0, 1)


def _by_token(step: AttentionStep) -> AttentionStep:
    """A row for each token, with all of its row's context."""
    query_lens_R = step.bounds.query_lens_R
    num_tokens = int(query_lens_R.sum())
    if num_tokens == len(query_lens_R):
        return step
    rows_T = step.token_rows_T
    numbers_T1 = torch.arange(num_tokens + 1, dtype=torch.int32, device=rows_T.device)
    return replace(
        step,
        query_starts_R1=numbers_T1,
        context_lens_R=step.context_lens_R.index_select(0, rows_T),
        token_rows_T=numbers_T1[:-1],
        table_rows_R=step.table_rows_R.index_select(0, rows_T),
        bounds=StepBounds(
            query_lens_R=np.ones(num_tokens, np.int32),
            context_lens_R=np.repeat(step.bounds.context_lens_R, query_lens_R),
        ),
    )


def _new_tokens(
    k_TKD: Tensor, v_TKD: Tensor, slots_T: Tensor, by: QKTransform, num_rows: int, is_mixed: bool
) -> dict[str, Any]:
    """What ``decode`` takes to store the first rows' tokens."""
    tensors = {
        "k_RKD": k_TKD,
        "v_RKD": v_TKD,
        "slots_R": slots_T,
        "cos_RF": by.cos_TF,
        "sin_RF": by.sin_TF,
    }
    if is_mixed:  # a slice costs 1 us
        tensors = {name: None if x is None else x[:num_rows] for name, x in tensors.items()}
    return {**tensors, "q_norm_D": by.q_norm_D, "k_norm_D": by.k_norm_D, "eps": by.eps}
