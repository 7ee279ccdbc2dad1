from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernel_tensors import assert_near, draw, poison
from octavo_kernels.lora import (
    MAX_POOL_ROWS,
    add_lora_,
    expand_,
    group_tokens,
    num_splits,
    reference,
    shrink,
    sums_bytes,
)

FLOATS = [torch.bfloat16, torch.float16, torch.float32]


@dataclass(frozen=True)
class Pool:
    """The rank rows of a linear layer."""

    down_PQI: Tensor
    up_PO: Tensor
    part_ends: list[int]

    @property
    def rows(self) -> int:
        return self.up_PO.shape[0]


def pool_of(
    rows: int,
    features: int,
    parts: Sequence[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
) -> Pool:
    ends = torch.tensor(parts).cumsum(0).tolist()
    down_PQI = draw(rows, len(parts), features, dtype=dtype, device=device)
    return Pool(down_PQI, draw(rows, ends[-1], dtype=dtype, device=device), ends)


def runs_of(ranks: Sequence[int], gap: int = 0) -> list[tuple[int, int]]:
    """First row and rank of adapters that stand side by side, then of none."""
    runs, first = [], 0
    for rank in ranks:
        runs.append((first, rank))
        first += rank + gap
    return [*runs, (-1, 0)]


def tokens_of(
    runs: Sequence[tuple[int, int]], chosen: Sequence[int], device: str = "cuda"
) -> tuple[Tensor, Tensor]:
    """First row and rank of each token, by the run that it has chosen; -1 is none."""
    table = torch.tensor([runs[choice] for choice in chosen], dtype=torch.int32, device=device)
    first_T, rank_T = table.reshape(-1, 2).T
    return first_T.contiguous(), rank_T.contiguous()


def by_hand(out_TO: Tensor, x_TI: Tensor, pool: Pool, first_T: Tensor, rank_T: Tensor) -> Tensor:
    """Token by token and part by part, in float64."""
    result_TO = out_TO.double()
    for token, (first, rank) in enumerate(zip(first_T.tolist(), rank_T.tolist(), strict=True)):
        begin = 0
        for part, end in enumerate(pool.part_ends if first >= 0 else []):
            down_RI = pool.down_PQI[first : first + rank, part].double()
            up_RO = pool.up_PO[first : first + rank, begin:end].double()
            result_TO[token, begin:end] += x_TI[token].double() @ down_RI.T @ up_RO
            begin = end
    return result_TO


def assert_equals_reference(
    x_TI: Tensor,
    out_TO: Tensor,
    pool: Pool,
    first_T: Tensor,
    rank_T: Tensor,
    **options: bool | int,
) -> None:
    """Compare what the kernels add to ``out``, in place, with the reference's."""
    runs = reference.runs_of(first_T, rank_T)
    largest = max([1, *(run.rank for run in runs)])
    sums_STQR = reference.shrink(x_TI, pool.down_PQI, runs, largest)
    expected_TO = reference.expand_(out_TO.clone(), sums_STQR, pool.up_PO, pool.part_ends, runs)
    groups = group_tokens(first_T, rank_T, pool_rows=pool.rows, **options)
    poison(40_000_000)  # the allocator hands it to the call
    sums_STQR = shrink(x_TI, pool.down_PQI, groups)
    assert expand_(out_TO, sums_STQR, pool.up_PO, pool.part_ends, groups) is out_TO
    exact = out_TO.dtype is torch.float32
    assert_near(out_TO, expected_TO, norm=1e-4 if exact else 5e-3, largest=1e-3 if exact else 1e-2)
    plain = (first_T < 0) | (rank_T == 0)
    assert torch.equal(out_TO[plain], expected_TO[plain])


def test_each_token_gets_its_own_adapters_product_added() -> None:
    torch.manual_seed(0)
    runs = runs_of([4, 1, 30, 7], gap=2)
    for features, parts in ((13, (5, 3, 12)), (32, (24,)), (7, (6, 6))):
        pool = pool_of(50, features, parts, dtype=torch.float32, device="cpu")
        for chosen in ([2], [-1], [0, -1, 2, 2, 0, 1, 3], [3] * 9, []):
            first_T, rank_T = tokens_of(runs, chosen, "cpu")
            x_TI = torch.randn(len(chosen), features)
            out_TO = torch.randn(len(chosen), pool.part_ends[-1])
            expected_TO = by_hand(out_TO, x_TI, pool, first_T, rank_T)
            arguments = (x_TI, pool.down_PQI, pool.up_PO, pool.part_ends, first_T, rank_T)
            assert add_lora_(out_TO, *arguments) is out_TO
            torch.testing.assert_close(out_TO.double(), expected_TO, rtol=1e-5, atol=1e-5)


def test_16_bit_sums_are_rounded_once_between_the_products() -> None:
    pool = pool_of(8, 64, (16,), device="cpu")
    x_TI, out_TO = draw(3, 64, device="cpu"), draw(3, 16, device="cpu")
    first_T, rank_T = tokens_of([(0, 8)], [0, 0, 0], "cpu")
    low_TR = (x_TI.float() @ pool.down_PQI[:, 0].float().T).bfloat16()
    expected_TO = (out_TO.float() + low_TR.float() @ pool.up_PO.float()).bfloat16()
    add_lora_(out_TO, x_TI, pool.down_PQI, pool.up_PO, [16], first_T, rank_T)
    assert torch.equal(out_TO, expected_TO)


def test_a_rank_of_zero_is_no_adapter() -> None:
    pool = pool_of(4, 8, (8,), dtype=torch.float32, device="cpu")
    first_T, rank_T = tokens_of([(2, 0)], [0, 0], "cpu")
    out_TO = torch.randn(2, 8)
    before_TO = out_TO.clone()
    x_TI = torch.randn(2, 8)
    add_lora_(out_TO, x_TI, pool.down_PQI, pool.up_PO, [8], first_T, rank_T)
    assert torch.equal(out_TO, before_TO)


def test_what_does_not_fit_is_refused() -> None:
    pool = pool_of(8, 8, (4, 4), dtype=torch.float32, device="cpu")
    first_T, rank_T = tokens_of([(0, 4)], [0, 0], "cpu")
    x_TI, out_TO = torch.randn(2, 8), torch.randn(2, 8)
    groups = group_tokens(first_T, rank_T, pool_rows=8)
    sums_STQR = shrink(x_TI, pool.down_PQI, groups)
    with pytest.raises(ValueError, match=r"torch\.int64, must be \[2\] of torch\.int32"):
        group_tokens(first_T.long(), rank_T, pool_rows=8)
    with pytest.raises(ValueError, match=f"1 to {MAX_POOL_ROWS} rows"):
        group_tokens(first_T, rank_T, pool_rows=MAX_POOL_ROWS + 1)
    with pytest.raises(ValueError, match="rank rows 6 to 9 are not in a pool of 8"):
        group_tokens(first_T + 6, rank_T, pool_rows=8)
    with pytest.raises(ValueError, match="more than max_rank=3"):
        group_tokens(first_T, rank_T, pool_rows=8, max_rank=3)
    with pytest.raises(ValueError, match=r"x \[1, 8\] and down"):
        shrink(x_TI[:1], pool.down_PQI, groups)
    with pytest.raises(ValueError, match=r"pool of torch\.float32"):
        shrink(x_TI.bfloat16(), pool.down_PQI, groups)
    for ends in ([4], [4, 12], [8, 8], [0, 8], [-1, 8], [4, 6, 8]):
        with pytest.raises(ValueError, match="expand_: "):
            expand_(out_TO, sums_STQR, pool.up_PO, ends, groups)


def test_splits_follow_the_number_of_tokens_unless_results_may_not() -> None:
    assert [num_splits(tokens, 4096, 16, False) for tokens in (1, 64, 1024)] == [8, 8, 4]
    assert {num_splits(tokens, 4096, 16, True) for tokens in (1, 64, 1024)} == {2}
    assert num_splits(1, 8, 16, False) == num_splits(10**6, 4096, 64, False) == 1


def test_plans_bound_the_sums_of_any_step() -> None:
    assert sums_bytes(32, 4096, 3, 17) == 4 * 8 * 32 * 3 * 32
    for tokens in (1, 33, 256, 257, 1000, 8192, 8193, 40000):
        tile_tokens = 16 if tokens <= 256 else 64
        splits = num_splits(tokens, 14336, tile_tokens, False)
        assert 4 * splits * tokens * 16 <= sums_bytes(max(tokens, 9000), 14336, 1, 16)
        assert sums_bytes(tokens, 14336, 1, 16, batch_invariant=True) == 4 * 7 * tokens * 16


RAGGED = [  # features, parts, ranks
    (64, (64,), (8, 16)),
    (4096, (4096, 1024, 1024), (16, 8, 64)),
    (1000, (520, 264), (1, 7, 15, 16, 17, 33)),
    (14336, (512,), (256, 3, 128)),
    (40, (8, 8, 8, 8, 8, 8, 8, 8), (5, 80, 256)),
    (37, (19, 5), (4, 31)),  # odd sizes: not on tensor cores
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("features", "parts", "ranks"), RAGGED)
def test_kernels_equal_the_reference(
    features: int, parts: tuple[int, ...], ranks: tuple[int, ...], dtype: torch.dtype
) -> None:
    runs = runs_of(ranks, gap=3)
    pool = pool_of(sum(ranks) + 3 * len(ranks), features, parts, dtype=dtype)
    generator = torch.Generator().manual_seed(features)
    for tokens in (1, 5, 16, 33, 100, 256, 257, 700):
        chosen = torch.randint(-1, len(ranks), (tokens,), generator=generator).tolist()
        first_T, rank_T = tokens_of(runs, chosen)
        x_TI, out_TO = draw(tokens, features, dtype=dtype), draw(tokens, sum(parts), dtype=dtype)
        assert_equals_reference(x_TI, out_TO, pool, first_T, rank_T, max_rank=max(ranks))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 16, 17, 64, 256, 300, 1000])
def test_all_tokens_may_have_one_adapter_or_none_or_each_its_own(tokens: int) -> None:
    runs = runs_of([8] * 64)
    pool = pool_of(512, 512, (256, 64))
    for chosen in ([0], [63], [-1], range(64)):
        first_T, rank_T = tokens_of(runs, [chosen[i % len(chosen)] for i in range(tokens)])
        assert_equals_reference(draw(tokens, 512), draw(tokens, 320), pool, first_T, rank_T)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [20, 400])
def test_rows_may_stand_apart_and_nothing_beside_them_is_touched(
    tokens: int, dtype: torch.dtype
) -> None:
    pool = pool_of(24, 256, (128, 72), dtype=dtype)
    first_T, rank_T = tokens_of(runs_of([8, 16]), [i % 3 - 1 for i in range(tokens)])
    for left in (8, 3):  # the second leaves rows at odd places
        room_TO = torch.full((tokens + 2, 224), 7.0, dtype=dtype, device="cuda")
        out_TO = room_TO[1:-1, left : left + 200]
        out_TO.copy_(draw(tokens, 200, dtype=dtype))
        x_TI = draw(tokens, 304, dtype=dtype)[:, left : left + 256]
        assert_equals_reference(x_TI, out_TO, pool, first_T, rank_T)
        out_TO.fill_(7.0)
        assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
def test_other_adapters_rows_count_for_nothing() -> None:
    pool = pool_of(64, 256, (64, 64))
    first_T, rank_T = tokens_of([(20, 5), (-1, 0)], [0, -1, 0])
    for rows in (slice(20), slice(25, None)):
        pool.down_PQI[rows] = torch.nan
        pool.up_PO[rows] = torch.nan
    assert_equals_reference(draw(3, 256), draw(3, 128), pool, first_T, rank_T)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [8192, MAX_POOL_ROWS])
def test_adapters_may_lie_anywhere_in_a_large_pool(rows: int) -> None:
    pool = pool_of(rows, 64, (64,))
    first_T, rank_T = tokens_of([(rows - 256, 256), (0, 1), (5000, 20)], [0, 1, 2, 0])
    assert_equals_reference(draw(4, 64), draw(4, 64), pool, first_T, rank_T, max_rank=256)


@pytest.mark.gpu
def test_runs_outside_of_the_pool_add_nothing() -> None:
    pool = pool_of(16, 64, (64,))
    first_T, rank_T = tokens_of([(8, 16), (16, 4), (-3, 4), (2**30, 2**30), (0, -1)], range(5))
    out_TO = draw(5, 64)
    before_TO = out_TO.clone()
    arguments = (draw(5, 64), pool.down_PQI, pool.up_PO, pool.part_ends, first_T, rank_T)
    add_lora_(out_TO, *arguments)
    assert torch.equal(out_TO, before_TO)


@pytest.mark.gpu
def test_results_are_the_same_each_time_and_batch_invariant_where_asked() -> None:
    pool = pool_of(300, 5000, (512, 512))
    runs = runs_of([16, 200, 3])
    first_T, rank_T = tokens_of(runs, [i * i % 4 - 1 for i in range(600)])
    x_TI = draw(600, 5000)

    def added(tokens: slice, batch_invariant: bool) -> Tensor:
        groups = group_tokens(
            first_T[tokens], rank_T[tokens], pool_rows=300, batch_invariant=batch_invariant
        )
        out_TO = torch.zeros(len(first_T[tokens]), 1024, dtype=torch.bfloat16, device="cuda")
        sums_STQR = shrink(x_TI[tokens], pool.down_PQI, groups)
        return expand_(out_TO, sums_STQR, pool.up_PO, pool.part_ends, groups)

    for tokens in (slice(40), slice(600)):
        first_TO = added(tokens, False)
        assert all(torch.equal(added(tokens, False), first_TO) for _ in range(20))
    all_TO = added(slice(600), True)
    for tokens in (slice(1), slice(3, 4), slice(7, 90), slice(300, 600)):
        assert torch.equal(added(tokens, True), all_TO[tokens])


@pytest.mark.gpu
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("tokens", [32, 300])
def test_a_recorded_graph_follows_other_adapters(tokens: int, settled: bool) -> None:
    runs = runs_of([16, 64, 1, 130, 8])
    pool = pool_of(219, 1024, (512, 128, 128))
    x_TI, base_TO = draw(tokens, 1024), draw(tokens, 768)
    first_T, rank_T = tokens_of(runs, [-1] * tokens)

    def run() -> Tensor:
        groups = group_tokens(first_T, rank_T, pool_rows=pool.rows, settled=settled)
        out_TO = base_TO.clone()  # an ordinary launch
        for _ in range(5):
            sums_STQR = shrink(x_TI, pool.down_PQI, groups)
            expand_(out_TO, sums_STQR, pool.up_PO, pool.part_ends, groups)
        return out_TO

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TO = run()
    for chosen in ([0], [-1], [3, 1, -1], range(5), [4, 0]):
        now = tokens_of(runs, [chosen[i % len(chosen)] for i in range(tokens)])
        first_T.copy_(now[0])
        rank_T.copy_(now[1])
        x_TI.normal_()
        out_TO.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out_TO, run())
        expected_TO = base_TO.clone()
        for _ in range(5):
            assert_equals_reference(x_TI, expected_TO, pool, first_T, rank_T)
        assert torch.equal(out_TO, expected_TO)
