"""Attention of pieces padded to one rectangle: prefill anywhere, and decode but for the CPU's.

Axis suffixes: T tokens of the batch, N pieces, Q queries of a piece, C cached positions of a piece,
H query heads, K key/value heads, G query heads per key/value head, D head dim, R queries of all
heads of a group (G Q).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.torch.pages import Pages, slots_at, to_device
from octavo_plugins.attention.torch.pieces import Pieces
from octavo_registry.step import AttentionStep

MAX_KEPT_CELLS = 1 << 20
"""Masks of up to so many cells are kept for all layers; larger ones are made again by each."""


class PaddedBatch:
    """Pieces of similar length as [N, Q] queries over [N, C] positions.

    Only live positions are read: padding repeats a live one and is masked. ``from_start`` says that
    every piece is a whole row from position 0 on, so that the mask is plain causality. ``is_exact``
    says that key lengths are no upper bounds and that tensors may be read; ``is_fused``, that torch
    has one call for the layer's attention.
    """

    def __init__(
        self,
        pieces: Pieces,
        step: AttentionStep,
        table_RB: Tensor,
        *,
        block_stride: int,
        window: int | None,
        from_start: bool,
        is_exact: bool,
        is_fused: bool,
    ) -> None:
        device = step.slots_T.device
        self._num_queries = int(pieces.sizes_N.max())
        self._num_keys = int(pieces.key_lens_N.max())
        self._from_start = from_start
        self._window = window
        self._is_fused = is_fused
        self._place_queries(pieces, device)
        rows_N, behinds_N, sizes_N = (
            to_device(array, device) for array in (pieces.rows_N, pieces.behinds_N, pieces.sizes_N)
        )
        contexts_N = step.context_lens_R.index_select(0, rows_N).long()
        firsts_N1 = (contexts_N - behinds_N).unsqueeze(1)
        wholes_N1 = to_device(pieces.wholes_N, device).unsqueeze(1)
        ends_N1 = torch.where(wholes_N1, contexts_N.unsqueeze(1), firsts_N1 + sizes_N.unsqueeze(1))
        begins_N1 = torch.zeros_like(ends_N1) if window is None else firsts_N1 - window + 1
        begins_N1 = begins_N1.clamp_(min=0)
        query_index_Q = torch.arange(self._num_queries, device=device)
        self._queries_NQ = firsts_N1 + torch.minimum(query_index_Q, sizes_N.unsqueeze(1) - 1)
        self._keys_NC = begins_N1 + torch.arange(self._num_keys, device=device)
        self._lasts_NQ = torch.where(wholes_N1, ends_N1 - 1, self._queries_NQ)
        table_NB = table_RB.index_select(0, rows_N)
        live_NC = torch.minimum(self._keys_NC, ends_N1 - 1)
        slots_NC = slots_at(table_NB, live_NC, step.block_tokens, block_stride)
        self._slots: Tensor | slice = slots_NC.flatten()
        if is_exact and _is_run(slots_NC):
            self._slots = slice(int(slots_NC[0, 0]), int(slots_NC[0, -1]) + 1)
        is_full = is_exact and self._num_queries == 1 and np.ptp(pieces.key_lens_N) == 0
        self._needs_mask = not (from_start or is_full)
        self._mask_NQC: Tensor | None = None

    def _place_queries(self, pieces: Pieces, device: torch.device) -> None:
        """Make the indices between the step's tokens, this batch's tokens and the rectangle."""
        num_queries, sizes_N = self._num_queries, pieces.sizes_N
        query_index_Q = np.arange(num_queries)
        live_NQ = query_index_Q < sizes_N[:, None]
        tokens_T = (pieces.tokens_N[:, None] + query_index_Q)[live_NQ]
        self.tokens_T = to_device(tokens_T, device)
        """Which of the step's tokens these are, in this batch's order."""
        self._padded_from: Tensor | None = None
        if not live_NQ.all():
            firsts_N = np.cumsum(sizes_N) - sizes_N
            clamped_NQ = np.minimum(query_index_Q, sizes_N[:, None] - 1)
            self._padded_from = to_device((firsts_N[:, None] + clamped_NQ).ravel(), device)
            self._live_in_padded = to_device(np.flatnonzero(live_NQ), device)

    def attend(self, q_THD: Tensor, pages: Pages, scoring: Scoring) -> Tensor:
        """The result [T, H, D] for this batch's queries."""
        num_queries, num_keys = self._num_queries, self._num_keys
        heads, head_dim = q_THD.shape[1:]
        if self._padded_from is not None:
            q_THD = q_THD.index_select(0, self._padded_from)
        q_NQHD = q_THD.reshape(-1, num_queries, heads, head_dim)
        slots_PSKD = pages.slots_PSKD
        kv = (
            slots_PSKD[self._slots]
            if isinstance(self._slots, slice)
            else slots_PSKD.index_select(0, self._slots)
        )
        kv_NCSKD = kv.to(q_THD.dtype).unflatten(0, (-1, num_keys))
        kv_SNKCD = kv_NCSKD.permute(2, 0, 3, 1, 4)
        k_NKCD, v_NKCD = kv_SNKCD[0], kv_SNKCD[-1, ..., : pages.value_dim]
        if self._is_fused:
            out_NQHD = self._attend_fused(q_NQHD, k_NKCD, v_NKCD, scoring.scale)
        else:
            out_NQHD = self._attend_plainly(q_NQHD, k_NKCD, v_NKCD, scoring)
        out_THD = out_NQHD.reshape(-1, heads, pages.value_dim)
        if self._padded_from is not None:
            out_THD = out_THD.index_select(0, self._live_in_padded)
        return out_THD

    def _attend_fused(self, q_NQHD: Tensor, k_NKCD: Tensor, v_NKCD: Tensor, scale: float) -> Tensor:
        kv_heads = k_NKCD.shape[1]
        mask = self._mask(q_NQHD.dtype) if self._needs_mask else None
        if self._num_queries == 1:  # a key/value head's query heads are as good as its queries
            q_NKGD = q_NQHD.squeeze(1).unflatten(1, (kv_heads, -1))
            out_NKGD = F.scaled_dot_product_attention(
                q_NKGD, k_NKCD, v_NKCD, attn_mask=mask, scale=scale
            )
            return out_NKGD.flatten(1, 2).unsqueeze(1)
        out_NHQD = F.scaled_dot_product_attention(
            q_NQHD.transpose(1, 2),
            k_NKCD,
            v_NKCD,
            attn_mask=mask,
            is_causal=self._from_start,
            scale=scale,
            enable_gqa=kv_heads != q_NQHD.shape[2],
        )
        return out_NHQD.transpose(1, 2)

    def _attend_plainly(
        self, q_NQHD: Tensor, k_NKCD: Tensor, v_NKCD: Tensor, scoring: Scoring
    ) -> Tensor:
        """Every step of the definition by itself, in float32."""
        kv_heads, num_queries = k_NKCD.shape[1], self._num_queries
        q_NKRD = q_NQHD.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3).float()
        scores_NKRC = scoring.capped(torch.matmul(q_NKRD * scoring.scale, k_NKCD.mT.float()))
        scores_NHQC = scores_NKRC.unflatten(2, (-1, num_queries)).flatten(1, 2)
        if scoring.alibi is not None:
            distances_NQC = self._keys_NC.unsqueeze(1) - self._queries_NQ.unsqueeze(2)
            scores_NHQC += scoring.alibi.view(-1, 1, 1) * distances_NQC.unsqueeze(1)
        scores_NHQC += self._mask(torch.float32)
        if scoring.sinks is not None:
            sinks_NHQ1 = scoring.sinks.float().view(-1, 1, 1).expand(*scores_NHQC.shape[:3], 1)
            scores_NHQC = torch.cat((scores_NHQC, sinks_NHQ1), dim=-1)
        weights_NHQC = scores_NHQC.softmax(-1)[..., : self._num_keys]
        weights_NKRC = weights_NHQC.unflatten(1, (kv_heads, -1)).flatten(2, 3)
        out_NKRD = torch.matmul(weights_NKRC, v_NKCD.float())
        out_NKGQD = out_NKRD.unflatten(2, (-1, num_queries))
        out_NQHD: Tensor = out_NKGQD.permute(0, 3, 1, 2, 4).flatten(2, 3).to(q_NQHD.dtype)
        return out_NQHD

    def _mask(self, dtype: torch.dtype) -> Tensor:
        """0 where a query sees a position, else -inf; [N, 1, Q, C]."""
        if self._mask_NQC is not None and self._mask_NQC.dtype == dtype:
            return self._mask_NQC
        keys_N1C = self._keys_NC.unsqueeze(1)
        hidden_NQC = keys_N1C > self._lasts_NQ.unsqueeze(2)
        if self._window is not None:
            hidden_NQC |= keys_N1C <= (self._queries_NQ - self._window).unsqueeze(2)
        mask_NQC = torch.zeros(hidden_NQC.shape, dtype=dtype, device=hidden_NQC.device)
        mask_N1QC = mask_NQC.masked_fill_(hidden_NQC, -torch.inf).unsqueeze(1)
        if mask_N1QC.numel() <= MAX_KEPT_CELLS:
            self._mask_NQC = mask_N1QC
        return mask_N1QC


def _is_run(slots_NC: Tensor) -> bool:
    """Whether this is one row whose blocks are consecutive: it can be read where it lies."""
    return len(slots_NC) == 1 and bool((slots_NC[0].diff() == 1).all())
