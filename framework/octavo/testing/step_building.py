"""Builds Steps by hand over a small paged cache with shuffled block ids and poisoned free pages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo_registry.attention import AttentionBackend
from octavo_registry.cache import CacheSpec
from octavo_registry.step import AttentionStep, LayerCache, Step, StepBounds


class StepBuilder:
    """Rows that grow step by step, each with a block table for every cache group.

    Every layer has pages of its own. What no row holds is NaN: all pages at first, and those that
    lie before a window as soon as they do. ``shuffled=False`` gives each row consecutive blocks.
    Where keys live for one step, each step has all of its rows, and there are no pages.
    """

    def __init__(
        self,
        cache_specs: Mapping[str, CacheSpec],
        backend: AttentionBackend,
        *,
        num_blocks: int = 256,
        block_tokens: int = 4,
        lane_bytes: int | None = None,
        shuffled: bool = True,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.backend = backend
        self.block_tokens = block_tokens
        self.device = torch.device(device)
        self.specs = tuple(dict.fromkeys(cache_specs.values()))
        self._in_step = any(spec.kind == "step" for spec in self.specs)
        self.pages: dict[str, Tensor] = {}
        self.layers: dict[str, LayerCache] = {}
        for name, spec in cache_specs.items():
            if self._in_step:
                self.layers[name] = LayerCache(
                    backend=backend, view=None, group=self.specs.index(spec)
                )
                continue
            page_bytes = backend.page_bytes(spec, block_tokens)
            lane = torch.full(
                (num_blocks, lane_bytes or page_bytes),
                0xFF,  # NaN in every float format
                dtype=torch.uint8,
                device=self.device,
            )
            self.pages[name] = lane
            self.layers[name] = LayerCache(
                backend=backend,
                view=backend.views(
                    lane[None, :, :page_bytes] if spec.kind == "media" else lane[:, :page_bytes],
                    spec,
                    block_tokens,
                ),
                group=self.specs.index(spec),
            )
        self._random = random.Random(seed)
        self._num_blocks = num_blocks
        order = list(range(num_blocks))
        if shuffled:
            self._random.shuffle(order)
        self._free = [list(order) for _ in self.specs]
        self._tables: list[list[list[int]]] = [[] for _ in self.specs]
        self.lens: list[int] = []

    def add_row(self) -> int:
        """A new empty row; returns its number."""
        for tables in self._tables:
            tables.append([])
        self.lens.append(0)
        return len(self.lens) - 1

    def step(
        self,
        rows: Sequence[tuple[int, int]],
        *,
        late_tokens: int = 0,
        written: bool = True,
        whole: Sequence[bool] | None = None,
    ) -> Step:
        """Extend each (row, number of tokens) of the sequence, in its order.

        ``late_tokens`` makes the host's upper bound of context lengths that much too high.
        ``written=False`` builds a step over tokens that were written before, the rows' last.
        ``whole`` are the rows whose tokens see all of their row.
        """
        row_ids = [row for row, _ in rows]
        if written:
            for row, num_tokens in rows:
                self.lens[row] = num_tokens if self._in_step else self.lens[row] + num_tokens
        query_lens = np.array([num_tokens for _, num_tokens in rows], dtype=np.int32)
        context_lens = np.array([self.lens[row] for row in row_ids], dtype=np.int32)
        starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
        positions = np.concatenate(
            [np.arange(n - q, n) for q, n in zip(query_lens, context_lens, strict=True)]
        )
        token_rows = np.repeat(np.arange(len(rows), dtype=np.int32), query_lens)
        bounds = StepBounds(
            query_lens_R=query_lens,
            context_lens_R=context_lens + late_tokens,
            whole_R=None if whole is None else np.array(whole),
        )
        groups = []
        no_places = np.zeros(0, np.int32)
        for group, spec in enumerate(self.specs):
            block_tokens, table_RB, slots = self.block_tokens, no_places[:, None], no_places
            if self._in_step:
                block_tokens = 0
            else:
                self._allocate(group, spec, rows)
                table_RB = self._table(group, row_ids, int(context_lens.max()) + late_tokens)
                blocks_T = table_RB[token_rows, positions // block_tokens].astype(np.int64)
                slots = blocks_T * block_tokens + positions % block_tokens
            step = AttentionStep(
                block_tokens=block_tokens,
                query_starts_R1=self._tensor(starts),
                context_lens_R=self._tensor(context_lens),
                token_rows_T=self._tensor(token_rows),
                positions_T=self._tensor(positions),
                table_SB=self._tensor(table_RB),
                table_rows_R=self._tensor(np.arange(len(table_RB), dtype=np.int32)),
                slots_T=self._tensor(slots.astype(np.int64)),
                bounds=bounds,
            )
            step.prepared = self.backend.prepare(step, spec)
            groups.append(step)
        return Step(
            num_tokens=int(starts[-1]),
            num_rows=len(rows),
            query_starts_R1=self._tensor(starts),
            bounds=bounds,
            positions_AT=self._tensor(positions).unsqueeze(0),
            groups=tuple(groups),
            layers=self.layers,
            sample_tokens_R=self._tensor(starts[1:] - 1).long(),
        )

    def move_blocks(self) -> None:
        """Put every row's blocks elsewhere, as bytes; what they leave behind is NaN."""
        for group, tables in enumerate(self._tables):
            for table in tables:
                for entry, block in enumerate(table):
                    if block < 0:
                        continue
                    table[entry] = other = self._free[group].pop(0)
                    for name, layer in self.layers.items():
                        if layer.group == group:
                            self.pages[name][other] = self.pages[name][block]
                    self._poison(group, block)
                    self._free[group].append(block)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _allocate(self, group: int, spec: CacheSpec, rows: Sequence[tuple[int, int]]) -> None:
        free, tables = self._free[group], self._tables[group]
        for row, num_tokens in rows:
            table = tables[row]
            while len(table) * self.block_tokens < self.lens[row]:
                table.append(free.pop(0))
            if spec.window is None:
                continue
            first_seen = max(self.lens[row] - num_tokens - spec.window + 1, 0)
            for index in range(first_seen // self.block_tokens):
                if table[index] >= 0:
                    self._poison(group, table[index])
                    free.append(table[index])
                    table[index] = -1

    def _poison(self, group: int, block: int) -> None:
        for name, layer in self.layers.items():
            if layer.group == group:
                self.pages[name][block] = 0xFF

    def _table(self, group: int, row_ids: Sequence[int], max_len: int) -> np.ndarray:
        """Freed and absent entries are arbitrary block ids."""
        width = -(-max_len // self.block_tokens)
        table_RB = np.array(
            [[self._random.randrange(self._num_blocks) for _ in range(width)] for _ in row_ids],
            dtype=np.int32,
        )
        for index, row in enumerate(row_ids):
            for entry, block in enumerate(self._tables[group][row]):
                if block >= 0:
                    table_RB[index, entry] = block
        return table_RB
