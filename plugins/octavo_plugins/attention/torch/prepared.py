"""A step's rows as batches, made once for all layers of a cache group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_plugins.attention.refusals import check_window
from octavo_plugins.attention.scoring import Scoring
from octavo_plugins.attention.torch.padded import PaddedBatch
from octavo_plugins.attention.torch.pages import Pages
from octavo_plugins.attention.torch.pieces import Ints, cut, similar
from octavo_plugins.attention.torch.ragged import RaggedBatch
from octavo_registry.cache import CacheSpec
from octavo_registry.step import AttentionStep

FEW_QUERIES = 4
"""Rows of up to so many queries are decoded; longer ones are prefilled."""
PIECE_QUERIES = 256
"""Prefill with a mask goes by so many queries, so that a piece's keys end where its queries do."""
MAX_CELLS = 1 << 21
"""Bounds the scratch of a batch: one mask per cell."""
MAX_NUMBERS = 1 << 26
"""Bounds the scratch of attention that is computed step by step, in float32: so many scores of all
heads, and as many entries of keys and values, are 256 MiB."""
MAX_FUSED_DIM = 256
"""Heads of more entries have no fused attention on CUDA: torch would make all scores of a row."""


def can_read(device: torch.device) -> bool:
    """Whether the host may read tensors; elsewhere it would wait for all work under way."""
    return device.type == "cpu"


class Batch(Protocol):
    """Tokens that one call computes."""

    tokens_T: Tensor

    def attend(self, q_THD: Tensor, pages: Pages, scoring: Scoring) -> Tensor:
        """The result [T, H, D] for this batch's queries, which are ``tokens_T`` of the step's."""
        ...


class PreparedStep:
    """Sorts rows into batches when the first layer asks, by what that layer computes.

    On a CPU, rows of few queries in float32 go to a ``RaggedBatch``; all else is padded, prefill
    apart from decode. Measured per layer, 2 threads of an AMD Zen 5, 32 rows of 50 to 600 positions
    in scattered blocks, 12 heads on 4 of 64 entries: ragged 1.4 ms, padded in 4 groups 2.7 ms (1.0
    ms of it gathers), and a Python loop over the rows 3.0 ms. Fused attention on keys and values
    that lie padded in memory already takes 2.2 ms.
    """

    def __init__(self, step: AttentionStep, spec: CacheSpec) -> None:
        self._step = step
        self._kept = spec.window
        self._is_exact = can_read(step.slots_T.device)
        self._query_lens_R = step.bounds.query_lens_R.astype(np.int64)
        contexts = step.context_lens_R.numpy() if self._is_exact else step.bounds.context_lens_R
        self._context_lens_R = contexts[: len(self._query_lens_R)].astype(np.int64)
        whole_R = step.bounds.whole_R
        self._whole_R = np.zeros(len(contexts), np.bool_) if whole_R is None else whole_R
        self._table_RB = step.block_table_RB()
        self._batches: dict[tuple[object, ...], list[Batch]] = {}

    def batches(self, q_THD: Tensor, pages: Pages, scoring: Scoring) -> list[Batch]:
        """The batches of a layer; together they have each token of the step once."""
        heads, cache_dtype = q_THD.shape[1], pages.slots_PSKD.dtype
        is_ragged = self._is_exact and q_THD.dtype == cache_dtype == torch.float32
        key = (heads, is_ragged, scoring.causal, scoring.window, scoring.is_plain)
        if key not in self._batches:
            self._batches[key] = list(self._make(pages, heads, is_ragged, scoring))
        return self._batches[key]

    def slots(self, pages: Pages) -> Tensor:
        """Where the step's tokens are stored in these pages."""
        return pages.places(self._step.slots_T)

    def _make(self, pages: Pages, heads: int, is_ragged: bool, scoring: Scoring) -> Iterator[Batch]:
        lens_R, window = self._query_lens_R, scoring.window
        check_window("torch", window, self._kept, causal=scoring.causal)
        key_dim = pages.slots_PSKD.shape[-1]
        is_fused = scoring.is_plain and (self._is_exact or key_dim <= MAX_FUSED_DIM)
        max_size, bounds = PIECE_QUERIES, {"max_cells": MAX_CELLS}
        if not is_fused:
            max_cells = min(MAX_CELLS, MAX_NUMBERS // heads)
            max_keys = MAX_NUMBERS // pages.slots_PSKD.shape[1:].numel()
            bounds = {"max_cells": max_cells, "max_keys": max_keys}
            longest = int(self._context_lens_R.max(initial=1))
            max_size = min(PIECE_QUERIES, max(max_cells // longest, 1))
        is_few_R = (lens_R <= FEW_QUERIES) & ~self._whole_R
        few, many = np.flatnonzero(is_few_R), np.flatnonzero(~is_few_R)
        if is_ragged and len(lens_R) > 1:
            yield from self._ragged(few, pages, heads, scoring)
        else:
            yield from self._padded(few, FEW_QUERIES, bounds, pages, scoring, is_fused)
        is_fresh = lens_R[many] == self._context_lens_R[many]
        if window is not None:
            is_fresh &= lens_R[many] <= window
        if not (scoring.causal and is_fused):
            is_fresh[:] = False
        is_fresh &= ~self._whole_R[many]
        fresh, others = many[is_fresh], many[~is_fresh]
        yield from self._padded(fresh, None, bounds, pages, scoring, is_fused)
        yield from self._padded(others, max_size, bounds, pages, scoring, is_fused)

    def _wholes(self, scoring: Scoring) -> NDArray[np.bool_]:
        """Rows whose queries see all of their row: all of them, where nothing is causal."""
        return self._whole_R if scoring.causal else np.ones_like(self._whole_R)

    def _ragged(self, rows: Ints, pages: Pages, heads: int, scoring: Scoring) -> Iterator[Batch]:
        pieces = cut(
            rows,
            self._query_lens_R,
            self._context_lens_R,
            max_size=1,
            whole_R=self._wholes(scoring),
            window=scoring.window,
        )
        # Padding costs the softmax only, so lengths may differ much. Cells are not bounded: all of
        # a step take about a quarter of what one layer's cache takes for the same positions.
        for group in similar(pieces, spread=4.0):
            yield RaggedBatch(
                group, self._step, self._table_RB, pages, heads=heads, causal=scoring.causal
            )

    def _padded(
        self,
        rows: Ints,
        max_size: int | None,
        bounds: dict[str, int],
        pages: Pages,
        scoring: Scoring,
        is_fused: bool,
    ) -> Iterator[Batch]:
        """``max_size`` None: rows that stand at their start, whole."""
        pieces = cut(
            rows,
            self._query_lens_R,
            self._context_lens_R,
            max_size=max_size or 2**31,
            whole_R=self._wholes(scoring),
            window=scoring.window,
        )
        for group in similar(pieces, spread=1.5, **bounds):
            yield PaddedBatch(
                group,
                self._step,
                self._table_RB,
                block_stride=pages.block_stride,
                window=scoring.window,
                from_start=max_size is None,
                is_exact=self._is_exact,
                is_fused=is_fused,
            )
