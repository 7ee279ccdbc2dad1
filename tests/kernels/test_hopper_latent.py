"""Attention of all heads to cached rows that are their keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels.hopper_latent import DIMS, _geometry, attend, misfit, reference

LENGTHS = {
    "equal": [1500] * 3,
    "of all sizes": [1, 0, 17, 1500, 33, 16],
    "many": [5, 300] * 100,
    "whole rows shared out": [40, 7] * 66,
    "one": [700],
}


def make(
    lengths: list[int],
    heads: int,
    dim: int,
    *,
    lanes: int = 4,
    lane_rows: int = 32,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> tuple[Tensor, ...]:
    """Queries, cache, table, its rows and lengths; all that no row sees is NaN."""
    torch.manual_seed(0)
    block_rows = lanes * lane_rows
    per_row = -(-max(lengths) // block_rows)
    num_blocks = len(lengths) * per_row + 3
    row_bytes = dim * dtype.itemsize
    pages = torch.full(
        (lanes, num_blocks, lane_rows * row_bytes + 256), 0xFF, dtype=torch.uint8, device=device
    )
    cache = pages[:, :, : lane_rows * row_bytes].view(dtype)
    cache = cache.unflatten(2, (lane_rows, dim))
    order = torch.randperm(num_blocks, device=device)[: len(lengths) * per_row].int()
    table = order.view(len(lengths), per_row).contiguous()
    table_rows = torch.randperm(len(lengths), device=device).int()
    for row, length in enumerate(lengths):
        places = torch.arange(length, device=device)
        blocks = table[table_rows[row].long()].long()[places // block_rows]
        within = places % block_rows
        x = torch.randn(length, dim, device=device).to(dtype)
        cache[within // lane_rows, blocks, within % lane_rows] = x
    q = torch.randn(heads, len(lengths), dim, device=device).to(dtype)
    context_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return q, cache, table, table_rows, context_lens


def error_of(case: tuple[Tensor, ...], scale: float) -> float:
    """Relative, by the reference; rows without context must be left as they are."""
    q = case[0]
    found, expected = (torch.full_like(q, float("nan")) for _ in range(2))
    attend(*case, found, scale=scale)
    reference.attend(*case, expected, scale=scale)
    there = case[-1] > 0
    assert found[:, ~there].isnan().all()
    found, expected = found[:, there].float(), expected[:, there].float()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("heads", [1, 6, 16, 20, 24])
def test_the_kernel_gives_what_the_reference_gives(lengths, dtype, dim, heads) -> None:
    if misfit(heads, dim) is None:
        assert error_of(make(lengths, heads, dim, dtype=dtype), 0.03) < 6e-3
        assert error_of(make(lengths, heads, dim, dtype=dtype, lanes=1, lane_rows=24), 0.3) < 6e-3


@pytest.mark.gpu
def test_lengths_and_tables_may_change_between_replays() -> None:
    case = make([300] * 8, 20, 1280)
    q, cache, table, _, context_lens = case
    found, expected = torch.zeros_like(q), torch.zeros_like(q)
    attend(*case, found, scale=0.03)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(*case, found, scale=0.03)
    context_lens.copy_(torch.tensor([1, 300, 44, 16, 299, 2, 0, 300]))
    table.copy_(table.flip(0).contiguous())
    cache.nan_to_num_(0.5)
    graph.replay()
    reference.attend(*case, expected, scale=0.03)
    there = context_lens > 0
    error = (found - expected)[:, there].float().norm() / expected[:, there].float().norm()
    assert error < 6e-3


def test_the_reference_is_a_softmax_over_rows_found_by_table() -> None:
    case = make([40, 0, 9], 3, 16, lanes=2, lane_rows=4, dtype=torch.float32, device="cpu")
    q, cache, table, table_rows, _ = case
    found = torch.full_like(q, float("nan"))
    attend(*case, found, scale=0.5)
    assert found[:, 1].isnan().all()
    for row, length in ((0, 40), (2, 9)):
        blocks = table[table_rows[row]].tolist()
        rows = torch.cat([cache[:, block].flatten(0, 1) for block in blocks])[:length]
        weights = (q[:, row] @ rows.T * 0.5).softmax(-1)
        torch.testing.assert_close(found[:, row], weights @ rows)


def test_layers_that_differ_in_pointers_only_are_checked_once() -> None:
    """However many layers a step has; other shapes or strides are another step's."""
    asked = {"dtype": torch.float32, "device": "cpu"}
    before = _geometry.cache_info()
    for lengths, lane_rows in (([5, 3], 6), ([5, 3], 10), ([5, 3, 1], 6)):
        for _layer in range(4):
            case = make(lengths, 2, 16, lane_rows=lane_rows, **asked)
            attend(*case, torch.empty_like(case[0]), scale=1)
    after = _geometry.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (3, 9)


def test_what_does_not_fit_is_an_error() -> None:
    q, *rest = make([5], 2, 16, dtype=torch.float32, device="cpu")
    with pytest.raises(ValueError, match="do not fit queries of shape"):
        attend(q[..., :8], *rest, q[..., :8], scale=1)
    with pytest.raises(ValueError, match="do not fit 1 rows"):
        attend(q, *rest[:-1], torch.zeros(2, dtype=torch.int32), q, scale=1)
    assert "entries" in str(misfit(8, 640))
    assert "at most 16" in str(misfit(20, 512))
