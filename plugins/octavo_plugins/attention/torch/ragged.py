"""Attention of single queries on a CPU, as products with a sparse matrix.

The matrix has a row per token and head, and in it an entry for each cache slot that they see.
Scores are the product of queries and keys, taken at the entries only; the result is the matrix of
weights times the values. Nothing is gathered, and nothing padded but the scores for the softmax:
rows may have any mix of lengths and any block tables, and what no row sees is never read.

Axis suffixes: T tokens, H query heads, K key/value heads, D head dim, C cached positions, E
entries, S keys and values of all slots.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.torch.pages import Pages, slots_at
from octavo_plugins.attention.torch.pieces import Pieces
from octavo_registry.step import AttentionStep


def hush_sparse_warnings() -> None:
    """Let torch give, unheard, what it says once a process of sparse tensors: beta, unchecked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = torch.zeros(0, dtype=torch.int64)
        torch.sparse_csr_tensor(
            torch.zeros(2, dtype=torch.int64), empty, torch.zeros(0), size=(1, 1)
        )


class RaggedBatch:
    """Pieces of one query each, in float32; for how they compare see ``PreparedStep``."""

    def __init__(
        self,
        pieces: Pieces,
        step: AttentionStep,
        table_RB: Tensor,
        pages: Pages,
        *,
        heads: int,
        causal: bool,
    ) -> None:
        self.tokens_T = torch.from_numpy(pieces.tokens_N)
        """Which of the step's tokens these are, in this batch's order."""
        _, stored, kv_heads, _ = pages.slots_PSKD.shape
        num_tokens, num_keys = len(pieces), int(pieces.key_lens_N.max())
        rows_T = torch.from_numpy(pieces.rows_N)
        lens_T = torch.from_numpy(pieces.key_lens_N)
        contexts_T1 = step.context_lens_R.index_select(0, rows_T).unsqueeze(1)
        queries_T1 = contexts_T1 - torch.from_numpy(pieces.behinds_N).unsqueeze(1)
        ends_T1 = queries_T1 + 1 if causal else contexts_T1
        keys_TC = ends_T1 - lens_T.unsqueeze(1) + torch.arange(num_keys)
        self._distances_TC = keys_TC - queries_T1
        table_TB = table_RB.index_select(0, rows_T)
        # Rows that see less than the longest see all from 0 on, so no key is past the table.
        slots_TC = slots_at(table_TB, keys_TC, step.block_tokens, pages.block_stride)
        # One more column than positions takes the sinks; without them it stays at -inf.
        self._scores_THC = torch.full((num_tokens, heads, num_keys + 1), -torch.inf)
        is_live_T1C = F.pad(keys_TC < ends_T1, (0, 1)).unsqueeze(1)
        self._entries_E = is_live_T1C.expand_as(self._scores_THC).flatten().nonzero().squeeze(1)
        kv_head_of_H = torch.arange(heads) // (heads // kv_heads)
        columns_THC = (
            F.pad(slots_TC * (stored * kv_heads), (0, 1)).unsqueeze(1) + kv_head_of_H[:, None]
        )
        self._columns_E = columns_THC.flatten().index_select(0, self._entries_E)
        self._row_starts = F.pad(lens_T.repeat_interleave(heads).cumsum(0), (1, 0))
        self._matrix = torch.sparse_csr_tensor(
            self._row_starts,
            self._columns_E,
            torch.zeros(len(self._entries_E)),
            size=(num_tokens * heads, pages.slots_PSKD.shape[0] * stored * kv_heads),
            check_invariants=False,
        )

    def attend(self, q_THD: Tensor, pages: Pages, scoring: Scoring) -> Tensor:
        """The result [T, H, D] for this batch's queries."""
        _, stored, kv_heads, head_dim = pages.slots_PSKD.shape
        cache_SD = pages.slots_PSKD.view(-1, head_dim)
        torch.sparse.sampled_addmm(
            self._matrix,
            q_THD.reshape(-1, head_dim),
            cache_SD.t(),
            beta=0.0,
            alpha=scoring.scale,
            out=self._matrix,
        )
        scores_E = scoring.capped(self._matrix.values())
        self._scores_THC.view(-1).index_copy_(0, self._entries_E, scores_E)
        weights_E = self._softmax(scoring).flatten().index_select(0, self._entries_E)
        # Where keys hold the values they are summed whole, as a slice would not be contiguous.
        out_XD = F.embedding_bag(
            self._columns_E,
            cache_SD[(stored - 1) * kv_heads :],  # a slot's values lie so far behind its keys
            self._row_starts,
            mode="sum",
            per_sample_weights=weights_E,
            include_last_offset=True,
        )
        return out_XD.view(q_THD.shape)[..., : pages.value_dim]

    def _softmax(self, scoring: Scoring) -> Tensor:
        scores_THC = self._scores_THC
        if scoring.alibi is not None:
            distances_T1C = F.pad(self._distances_TC, (0, 1)).unsqueeze(1)
            scores_THC = scores_THC + scoring.alibi.view(-1, 1) * distances_T1C
        if scoring.sinks is not None:
            scores_THC = torch.cat((scores_THC[..., :-1], self._sinks(scoring.sinks)), dim=-1)
        return scores_THC.softmax(-1)

    def _sinks(self, sinks_H: Tensor) -> Tensor:
        return sinks_H.float().view(-1, 1).expand(*self._scores_THC.shape[:2], 1)
