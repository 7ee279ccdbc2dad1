"""The ``torch`` attention backend.

Axis suffixes: T tokens of a step, H query heads, K key/value heads, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_plugins.attention.media import MediaPages, row_bytes_of
from octavo_plugins.attention.refusals import misfit
from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.torch.media import attend_media
from octavo_plugins.attention.torch.pages import Pages, slot_bytes_of
from octavo_plugins.attention.torch.prepared import PreparedStep
from octavo_plugins.attention.torch.ragged import hush_sparse_warnings
from octavo_plugins.attention.transform import transformed
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.step import AttentionStep

DTYPES = ("float32", "bfloat16", "float16")
KINDS = ("full", "window", "latent", "cross", "media")


class TorchAttention:
    """Keys and values by token: [blocks, block_tokens, 2, kv_heads, head_dim], one run a block.

    A latent cache has keys only. Consecutive blocks are one array of slots, read where it lies.
    """

    most_recorded_queries = 0
    """Batches are made by length, on the host."""
    batch_invariant = False
    """Rows of similar length are padded and computed together."""

    def __init__(self) -> None:
        hush_sparse_warnings()

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """See ``AttentionBackend``, as for all methods here."""
        return misfit(spec, KINDS, DTYPES, whole_rows=True)

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Keys and values of a block's tokens, and nothing else."""
        if spec.kind == "media":
            return row_bytes_of(spec) * block_tokens
        return slot_bytes_of(spec) * block_tokens

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Pages | MediaPages:
        """The pages as slots."""
        if spec.kind == "media":
            return MediaPages.of(pages, spec)
        return Pages.of(pages, spec, block_tokens)

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> PreparedStep | None:
        """Wait with all but the host's arithmetic until the first layer tells its head count."""
        return None if spec.kind == "media" else PreparedStep(step, spec)

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
        """Softmax in float32; each query sees its row's cached positions up to its own."""
        if isinstance(view, MediaPages):
            return attend_media(q_THD, view, step, scale)
        scoring = Scoring(
            scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks, alibi=alibi
        )
        if transform is not None:
            q_THD, k_TKD = transformed(q_THD, k_TKD, transform)
        prepared: PreparedStep = step.prepared
        if k_TKD is not None:
            kv = (k_TKD,) if v_TKD is None else (k_TKD, v_TKD)
            kv_TSKD = torch.stack(kv, dim=1).to(view.slots_PSKD.dtype)
            view.slots_PSKD.index_copy_(0, prepared.slots(view), kv_TSKD)
        batches = prepared.batches(q_THD, view, scoring)
        if len(batches) == 1:  # then its tokens are the step's, in order
            return batches[0].attend(q_THD, view, scoring)
        out_THD = q_THD.new_empty((*q_THD.shape[:2], view.value_dim))
        for batch in batches:
            batch_q_THD = q_THD.index_select(0, batch.tokens_T)
            out_THD.index_copy_(0, batch.tokens_T, batch.attend(batch_q_THD, view, scoring))
        return out_THD

    def store(
        self, k_MKD: Tensor, v_MKD: Tensor | None, view: Pages | MediaPages, slots_M: Tensor
    ) -> None:
        """See ``StoresRows``."""
        if isinstance(view, MediaPages):
            view.store(k_MKD[:, 0], slots_M)
            return
        assert v_MKD is not None
        kv_MSKD = torch.stack((k_MKD, v_MKD), dim=1).to(view.slots_PSKD.dtype)
        view.slots_PSKD.index_copy_(0, view.places(slots_M), kv_MSKD)
