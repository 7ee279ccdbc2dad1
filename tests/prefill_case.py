"""Ragged batches for attention of prefill on a paged cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.hopper_prefill import reference


@dataclass(kw_only=True)
class Case:
    """A ragged batch on a cache in which all that no query may see is NaN."""

    query_lens: list[int]
    prefixes: list[int]
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    block_tokens: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    """None: ``dtype``"""
    first_row: int = 0
    device: str = "cpu"

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        random = torch.Generator().manual_seed(seed)
        contexts = [a + b for a, b in zip(self.query_lens, self.prefixes, strict=True)]
        num_rows = len(contexts)
        widths = [-(-context // self.block_tokens) for context in contexts]
        num_blocks = sum(widths) + 3
        page = 2 * self.kv_heads * self.block_tokens * self.head_dim
        # Blocks lie further apart than they are long.
        pool = torch.full((num_blocks, page + 64), torch.nan)
        shape = (num_blocks, 2, self.kv_heads, self.block_tokens, self.head_dim)
        cache = pool[:, :page].view(shape)
        free = torch.randperm(num_blocks, generator=random).tolist()
        # Slots are in another order than rows, and entries past a context name any block.
        slots = torch.randperm(num_rows + 2, generator=random)[:num_rows]
        table_SB = torch.randint(0, num_blocks, (num_rows + 2, max(widths) + 2), generator=random)
        for context, width, slot in zip(contexts, widths, slots.tolist(), strict=True):
            blocks_B = torch.tensor([free.pop() for _ in range(width)], dtype=torch.int64)
            table_SB[slot, :width] = blocks_B
            inside_BC = torch.arange(width * self.block_tokens).view(width, -1) < context
            values = torch.randn((width, *shape[1:]), generator=random)
            hidden = ~inside_BC[:, None, None, :, None].expand_as(values)
            cache[blocks_B] = values.masked_fill_(hidden, torch.nan)
        starts_R1 = torch.tensor([0, *np.cumsum(self.query_lens).tolist()])
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        qkv_TX = torch.randn(int(starts_R1[-1]) + 5, width, generator=random)
        qkv_TX = qkv_TX.to(self.device, self.dtype)
        q_THD = qkv_TX[:, : self.heads * self.head_dim].unflatten(1, (self.heads, self.head_dim))
        pool = pool.to(self.device, self.cache_dtype or self.dtype)
        return {
            "q_THD": q_THD,
            "cache": pool[:, :page].view(shape),
            "table_SB": table_SB.to(self.device, torch.int32),
            "table_rows_R": slots.to(self.device, torch.int32),
            "query_starts_R1": starts_R1.to(self.device, torch.int32),
            "context_lens_R": torch.tensor(contexts, dtype=torch.int32, device=self.device),
            "out_THD": torch.full(q_THD.shape, torch.nan, dtype=self.dtype, device=self.device),
            "first_row": self.first_row,
            "query_lens_R": np.array(self.query_lens, dtype=np.int32),
            "scale": self.head_dim**-0.5,
        }


DEFAULTS = {
    "causal": True,
    "window": None,
    "softcap": None,
    "sinks_H": None,
    "k_scale": 1.0,
    "v_scale": 1.0,
}


def expected(arguments: dict[str, Any]) -> Tensor:
    copy = DEFAULTS | arguments
    copy.pop("max_context", None)
    copy["out_THD"] = torch.full_like(arguments["out_THD"], torch.nan, dtype=torch.float32)
    reference.prefill(**copy)
    return copy["out_THD"]
