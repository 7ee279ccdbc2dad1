"""Every backend reads encoded media alike: any number of queries see all that was stored."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_plugins.attention.hopper.backend import HopperAttention
from octavo_plugins.attention.paged.backend import PagedAttention
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry.attention import AttentionBackend, StoresRows
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from octavo_registry.step import AttentionStep, StepBounds

BLOCK = 16
HEADS, DIM = 4, 64
ROWS = 50
LENGTHS = [50, 3, 33]
"""Encoded rows of three sequences."""
BACKENDS: dict[str, tuple[type[AttentionBackend], str]] = {
    "torch": (TorchAttention, "float32"),
    "paged": (PagedAttention, "float32"),
    "hopper": (HopperAttention, "bfloat16"),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def step_of(query_lens: list[int], table_SB: Tensor, *, invariant: bool) -> AttentionStep:
    """One row a sequence; what says where tokens go has no meaning, so it points far beyond."""
    device = table_SB.device
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    count = int(starts[-1])
    return AttentionStep(
        block_tokens=BLOCK,
        query_starts_R1=torch.from_numpy(starts).to(device),
        context_lens_R=torch.tensor(LENGTHS, dtype=torch.int32, device=device),
        token_rows_T=torch.from_numpy(np.repeat(np.arange(3, dtype=np.int32), query_lens)).to(
            device
        ),
        positions_T=torch.full((count,), 1000, device=device),
        table_SB=table_SB,
        table_rows_R=torch.tensor([2, 0, 1], dtype=torch.int32, device=device),
        slots_T=torch.full((count,), 10**9, device=device),
        bounds=StepBounds(
            query_lens_R=np.array(query_lens, np.int32),
            context_lens_R=np.full(3, ROWS, np.int32),
        ),
        batch_invariant=invariant,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("query_lens", [[1, 1, 1], [2, 9, 1], [70, 1, 5]])
@pytest.mark.parametrize("name", BACKENDS)
def test_all_queries_see_all_rows_of_their_own(name: str, query_lens, device: str) -> None:
    kind, dtype = BACKENDS[name]
    backend, own = kind(), getattr(torch, dtype)
    spec = CacheSpec.cross(kv_heads=HEADS, head_dim=DIM, dtype=dtype, rows=ROWS)
    pages = torch.full(
        (12, backend.page_bytes(spec, BLOCK)), 0xFF, dtype=torch.uint8, device=device
    )  # NaN wherever nothing was stored
    view = backend.views(pages, spec, BLOCK)
    table_SB = torch.tensor(
        [[4, 0, 0, 0], [9, 2, 7, 0], [11, 1, 3, 8]], dtype=torch.int32, device=device
    )
    torch.manual_seed(0)
    stored = []
    for slot, length in zip([2, 0, 1], LENGTHS, strict=True):
        places = torch.arange(length, device=device)
        slots = table_SB[slot].long()[places // BLOCK] * BLOCK + places % BLOCK
        k_MKD, v_MKD = torch.randn(2, length, HEADS, DIM, device=device).to(own)
        assert isinstance(backend, StoresRows)
        backend.store(k_MKD, v_MKD, view, slots)
        stored.append((k_MKD.float(), v_MKD.float()))
    for invariant in (False, True):
        if invariant and not backend.batch_invariant:
            continue
        step = step_of(query_lens, table_SB, invariant=invariant)
        step.prepared = backend.prepare(step, spec)
        q_THD = torch.randn(sum(query_lens), HEADS, DIM, device=device).to(own)
        found = backend.attend(q_THD, None, None, view, step, scale=0.1, causal=False)
        expected = torch.cat(
            [
                torch.einsum(
                    "thc,chd->thd",
                    torch.einsum("thd,chd->thc", q.float() * 0.1, k).softmax(-1),
                    v,
                )
                for q, (k, v) in zip(q_THD.split(query_lens), stored, strict=True)
            ]
        )
        error = (found.float() - expected).norm() / expected.norm()
        assert error < (1e-5 if dtype == "float32" else 1e-2)


def test_a_kernel_that_is_causal_takes_no_causality_from_a_cross_group() -> None:
    spec = CacheSpec.cross(kv_heads=HEADS, head_dim=DIM, dtype="bfloat16", rows=ROWS)
    backend = HopperAttention()
    view = backend.views(
        torch.zeros(12, backend.page_bytes(spec, BLOCK), dtype=torch.uint8), spec, BLOCK
    )
    table_SB = torch.zeros(3, 4, dtype=torch.int32)
    q_THD = torch.zeros(3, HEADS, DIM, dtype=torch.bfloat16)
    for own, causal in ((spec, True), (dataclasses.replace(spec, kind="full", rows=None), False)):
        step = step_of([1, 1, 1], table_SB, invariant=False)
        step.prepared = backend.prepare(step, own)
        with pytest.raises(PluginError, match=f"causal={causal}"):
            backend.attend(q_THD, None, None, view, step, scale=0.1, causal=causal)
