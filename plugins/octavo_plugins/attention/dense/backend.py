"""The ``dense`` attention backend: keys and values come with a step and go with it.

Axis suffixes: T tokens of a step, N rows of equal length, Q queries of a row, C its tokens, H query
heads, K key/value heads, G query heads per key/value head, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from octavo_plugins.attention.refusals import misfit
from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.transform import transformed
from octavo_registry.attention import QKTransform
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from octavo_registry.step import AttentionStep

DTYPES = ("float32", "bfloat16", "float16")
MAX_NUMBERS = 1 << 26
"""Scores of all heads that are computed at a time where torch has no one call for the layer's
attention: 256 MiB in float32."""


class DenseAttention:
    """Rows of equal length are one call, read where they lie if they lie side by side."""

    most_recorded_queries = 0
    """Rows are sorted by length, on the host."""
    batch_invariant = False
    """Rows of equal length are computed together."""

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """See ``AttentionBackend``, as for all methods here."""
        return misfit(spec, ("step",), DTYPES)

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Nothing is kept."""
        return 0

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> None:
        """There is nothing to see."""

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> PreparedRows:
        """Sort the rows by length."""
        return PreparedRows(step, spec)

    def attend(
        self,
        q_THD: Tensor,
        k_TKD: Tensor | None,
        v_TKD: Tensor | None,
        view: None,
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
        """Softmax in float32 over the tokens that a query sees of its row."""
        prepared: PreparedRows = step.prepared
        spec = prepared.spec
        if k_TKD is None:
            raise PluginError("attention backend 'dense': a step has no keys but its own")
        if (causal, window) != (spec.sees == "before", spec.window):
            raise PluginError(
                f"attention backend 'dense': causal={causal}, window={window} are not what the "
                f"layer's CacheSpec says: sees={spec.sees!r}, window={spec.window}"
            )
        scoring = Scoring(
            scale=scale, causal=causal, window=window, softcap=softcap, sinks=sinks, alibi=alibi
        )
        if transform is not None:
            q_THD, given_TKD = transformed(q_THD, k_TKD, transform)
            assert given_TKD is not None
            k_TKD = given_TKD
        if v_TKD is None:
            v_TKD = k_TKD[..., : spec.value_dim]
        out_THD = q_THD.new_empty((*q_THD.shape[:2], v_TKD.shape[2]))
        for rows in prepared.equal_rows:
            attended_THD = rows.attend(q_THD, k_TKD, v_TKD, scoring)
            if isinstance(rows.tokens, slice):
                if len(attended_THD) == len(q_THD):
                    return attended_THD
                out_THD[rows.tokens] = attended_THD
            else:
                out_THD.index_copy_(0, rows.tokens, attended_THD)
        return out_THD


class PreparedRows:
    """The rows of a step, sorted into those of equal length."""

    def __init__(self, step: AttentionStep, spec: CacheSpec) -> None:
        self.spec = spec
        lens_R = step.bounds.query_lens_R.astype(np.int64)
        starts_R = np.cumsum(lens_R) - lens_R
        order_R = np.argsort(lens_R, kind="stable")
        borders = np.flatnonzero(np.diff(lens_R[order_R])) + 1
        self.equal_rows = [
            EqualRows.of(starts_R[rows_N], int(lens_R[rows_N[0]]), step.positions_T.device)
            for rows_N in np.split(order_R, borders)
            if len(rows_N) and lens_R[rows_N[0]]
        ]


@dataclass(slots=True)
class EqualRows:
    """Rows of one length."""

    num_rows: int
    length: int
    tokens: slice | Tensor
    """Which of the step's tokens they have, in order."""
    device: torch.device
    _window_mask_QC: Tensor | None = None

    @classmethod
    def of(cls, starts_N: NDArray[np.int64], length: int, device: torch.device) -> EqualRows:
        """Rows of so many tokens that begin there, in ascending order."""
        num_rows, first = len(starts_N), int(starts_N[0])
        if int(starts_N[-1]) - first == (num_rows - 1) * length:
            return cls(num_rows, length, slice(first, first + num_rows * length), device)
        tokens_NQ = starts_N[:, None] + np.arange(length)
        return cls(num_rows, length, torch.from_numpy(tokens_NQ.ravel()).to(device), device)

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scoring: Scoring) -> Tensor:
        """The result [T, H, D] for the tokens of these rows."""
        q_NHQD, k_NKCD, v_NKCD = (self._by_row(x_THD) for x_THD in (q_THD, k_TKD, v_TKD))
        if not scoring.is_plain:
            return self._attend_plainly(q_NHQD, k_NKCD, v_NKCD, scoring)
        out_NHQD: Tensor = F.scaled_dot_product_attention(
            q_NHQD,
            k_NKCD,
            v_NKCD,
            attn_mask=None if scoring.window is None else self._window_mask(scoring),
            is_causal=scoring.causal and scoring.window is None,
            scale=scoring.scale,
            enable_gqa=q_NHQD.shape[1] != k_NKCD.shape[1],
        )
        return out_NHQD.transpose(1, 2).flatten(0, 1)

    def _by_row(self, x_TXD: Tensor) -> Tensor:
        if isinstance(self.tokens, slice):
            x_TXD = x_TXD[self.tokens]
        else:
            x_TXD = x_TXD.index_select(0, self.tokens)
        x_NLXD: Tensor = x_TXD.unflatten(0, (self.num_rows, self.length))
        return x_NLXD.transpose(1, 2)

    def _window_mask(self, scoring: Scoring) -> Tensor:
        """True where a query sees a token; the same for all layers of a group."""
        if self._window_mask_QC is None:
            self._window_mask_QC = ~_hidden(self._backs(slice(None)), scoring)
        return self._window_mask_QC

    def _backs(self, queries: slice) -> Tensor:
        """How far each token lies behind a query; [Q, C]."""
        places_C = torch.arange(self.length, device=self.device)
        return places_C[queries, None] - places_C

    def _attend_plainly(
        self, q_NHQD: Tensor, k_NKCD: Tensor, v_NKCD: Tensor, scoring: Scoring
    ) -> Tensor:
        """Every step of the definition by itself, in float32, some queries at a time."""
        kv_heads, heads = k_NKCD.shape[1], q_NHQD.shape[1]
        q_NKGQD = q_NHQD.unflatten(1, (kv_heads, -1))
        out_NQHD = q_NHQD.new_empty((self.num_rows, self.length, heads, v_NKCD.shape[3]))
        most_queries = max(MAX_NUMBERS // (heads * self.length), 1)
        most_rows = max(most_queries // self.length, 1)
        for row in range(0, self.num_rows, most_rows):
            rows = slice(row, row + most_rows)
            for query in range(0, self.length, most_queries):
                queries = slice(query, query + most_queries)
                weights_NKGQC = self._weights(
                    q_NKGQD[rows, :, :, queries], k_NKCD[rows], self._backs(queries), scoring
                )
                some_NKGQD = torch.matmul(weights_NKGQC, v_NKCD[rows].float().unsqueeze(2))
                out_NQHD[rows, queries] = some_NKGQD.flatten(1, 2).transpose(1, 2)
        return out_NQHD.flatten(0, 1)

    def _weights(
        self, q_NKGQD: Tensor, k_NKCD: Tensor, backs_QC: Tensor, scoring: Scoring
    ) -> Tensor:
        k_NKDC = k_NKCD.unsqueeze(2).mT.float()
        scores_NKGQC = scoring.capped(torch.matmul(q_NKGQD.float() * scoring.scale, k_NKDC))
        group_shape = (k_NKCD.shape[1], -1, 1, 1)
        if scoring.alibi is not None:
            scores_NKGQC -= scoring.alibi.view(group_shape) * backs_QC.abs()
        scores_NKGQC.masked_fill_(_hidden(backs_QC, scoring), -torch.inf)
        if scoring.sinks is None:
            return scores_NKGQC.softmax(-1)
        sinks_KG11 = scoring.sinks.float().view(group_shape)
        sinks_NKGQ1 = sinks_KG11.expand(*scores_NKGQC.shape[:4], 1)
        with_sinks = torch.cat((scores_NKGQC, sinks_NKGQ1), dim=-1)
        weights_NKGQC: Tensor = with_sinks.softmax(-1)[..., :-1]
        return weights_NKGQC


def _hidden(backs_QC: Tensor, scoring: Scoring) -> Tensor:
    """Tokens that a query does not see, by how far they lie behind it."""
    if scoring.window is None:
        return backs_QC < 0 if scoring.causal else torch.zeros_like(backs_QC, dtype=torch.bool)
    if scoring.causal:
        return (backs_QC < 0) | (backs_QC >= scoring.window)
    return backs_QC.abs() >= scoring.window
