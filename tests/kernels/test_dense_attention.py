from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_kernels import dense_attention as package
from octavo_kernels.dense_attention import dense_attention, fits, reference, takes, tiles

HALVES = [torch.bfloat16, torch.float16]


def qkv(
    num_tokens: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[Tensor]:
    """Views of one product, whose rows lie further apart than they are long."""
    random = torch.Generator().manual_seed(num_tokens + head_dim)
    width = 3 * heads * head_dim
    product_PX = torch.randn(num_tokens, width + 16, generator=random).to(device, dtype)
    return list(product_PX[:, :width].unflatten(1, (-1, head_dim)).chunk(3, dim=1))


def plain(
    q_PHE: Tensor, k_PHE: Tensor, v_PHE: Tensor, lengths: list[int], seen: list[int]
) -> Tensor:
    """Run by run, head by head, in double precision."""
    parts, start = [], 0
    for length, keys in zip(lengths, seen, strict=True):
        q_HPE, k_HPE, v_HPE = (
            each[start : start + length].double().transpose(0, 1) for each in (q_PHE, k_PHE, v_PHE)
        )
        scores_HPK = q_HPE @ k_HPE[:, :keys].mT * q_PHE.shape[2] ** -0.5
        parts.append((scores_HPK.softmax(-1) @ v_HPE[:, :keys]).transpose(0, 1))
        start += length
    return torch.cat(parts)


@pytest.mark.parametrize("head_dim", [8, 72, 80, 160])
def test_each_token_attends_to_what_is_seen_of_its_run(head_dim: int) -> None:
    lengths, seen = [3, 3, 7, 1, 3, 20], [3, 3, 2, 1, 3, 11]
    operands = qkv(sum(lengths), 2, head_dim)
    out_PHE = dense_attention(*operands, lengths, seen)
    torch.testing.assert_close(
        out_PHE.double(), plain(*operands, lengths, seen), rtol=1e-4, atol=1e-5
    )


def test_all_of_a_run_is_seen_unless_said() -> None:
    operands = qkv(12, 2, 16)
    out_PHE = dense_attention(*operands, [5, 7])
    assert torch.equal(out_PHE, dense_attention(*operands, [5, 7], [5, 7]))


@pytest.mark.parametrize(
    ("lengths", "seen"),
    [
        ([5], None),
        ([5, 8], None),
        ([5, 7], [5]),
        ([5, 7], [0, 7]),
        ([5, 7], [6, 7]),
        ([12, 0], None),
    ],
)
def test_runs_that_do_not_fit_are_refused(lengths: list[int], seen: list[int] | None) -> None:
    with pytest.raises(ValueError, match="runs of"):
        dense_attention(*qkv(12, 2, 16), lengths, seen)


def test_queries_keys_and_values_have_one_shape() -> None:
    q_PHE, k_PHE, v_PHE = qkv(12, 2, 16)
    with pytest.raises(ValueError, match=r"keys \[12, 1, 16\]"):
        dense_attention(q_PHE, k_PHE[:, :1], v_PHE, [12])


def test_tiles_hold_every_query_once_and_those_with_most_keys_come_first() -> None:
    lengths, seen = [130, 1, 128, 300], [100, 1, 128, 300]
    rows = tiles(lengths, seen, 128).tolist()
    assert rows == [
        [259, 128, 259, 300],
        [387, 128, 259, 300],
        [515, 44, 259, 300],
        [131, 128, 131, 128],
        [0, 128, 0, 100],
        [128, 2, 0, 100],
        [130, 1, 130, 1],
    ]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [8, 64, 72, 80, 96, 128])
def test_the_kernel_reads_views_of_a_product(head_dim: int, dtype: torch.dtype) -> None:
    assert all(fits(each) for each in qkv(5, 3, head_dim, dtype))


@pytest.mark.parametrize("name", ["float32", "wide", "odd", "heads", "entries", "rows", "address"])
def test_what_the_kernel_cannot_read_is_torchs(name: str) -> None:
    q_PHE = qkv(6, 4, 64, torch.bfloat16)[0]
    flat = torch.zeros(6 * 4 * 64 + 8, dtype=torch.bfloat16)
    tensor = {
        "float32": q_PHE.float(),
        "wide": torch.zeros(6, 4, 136, dtype=torch.bfloat16),
        "odd": torch.zeros(6, 4, 60, dtype=torch.bfloat16),
        "heads": q_PHE[:, ::2],
        "entries": torch.zeros(6, 64, 4, dtype=torch.bfloat16).mT,
        "rows": torch.zeros(6, 4 * 64 + 4, dtype=torch.bfloat16)[:, :256].unflatten(1, (4, 64)),
        "address": flat[4:-4].view(6, 4, 64),
    }[name]
    assert not fits(tensor)


def test_no_kernel_runs_on_a_cpu_nor_on_an_older_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "num_processors", lambda _: 132)
    operands = qkv(5, 3, 64, torch.bfloat16)
    assert not takes(*operands)
    dense_attention(*operands, [5])


def poisoned_like(tensor: Tensor, **options: Any) -> Tensor:
    """For ``torch.empty_like``."""
    return torch.full_like(tensor, torch.nan, **options)


def check(
    lengths: list[int],
    head_dim: int,
    dtype: torch.dtype,
    *,
    seen: list[int] | None = None,
    heads: int = 3,
) -> None:
    """The kernel equals the reference in float32, writes all results, and repeats them."""
    operands = qkv(sum(lengths), heads, head_dim, dtype, "cuda")
    assert takes(*operands)
    wanted_PHE = reference.dense_attention(
        *(each.float() for each in operands), lengths, lengths if seen is None else seen
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty_like", poisoned_like)
        out_PHE = dense_attention(*operands, lengths, seen)
    assert out_PHE.is_contiguous()
    error_PHE = out_PHE.float() - wanted_PHE
    relative = float(error_PHE.norm() / wanted_PHE.norm())
    largest = float(error_PHE.abs().max())
    print(f"{lengths[:8]} x {len(lengths)} of {head_dim}: {relative:.1e} {largest:.1e}")
    assert relative < 1e-2
    assert largest < 4e-2
    assert torch.equal(out_PHE, dense_attention(*operands, lengths, seen))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [8, 40, 64, 72, 80, 88, 96, 104, 128])
@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [16],
        [64],
        [128],
        [256],
        [300],
        [63, 1, 65, 127, 64, 129, 128, 191, 192, 193, 255, 257, 1],
        [6000, 3, 1000],
    ],
)
def test_ragged_runs_equal_the_reference(
    lengths: list[int], head_dim: int, dtype: torch.dtype
) -> None:
    check(lengths, head_dim, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80])
def test_images_and_windows_equal_the_reference(head_dim: int) -> None:
    check([5476] * 3, head_dim, torch.bfloat16, heads=16)
    check([64] * 500, head_dim, torch.bfloat16, heads=16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("head_dim", [64, 72, 80, 96, 128])
def test_tokens_that_are_not_seen_may_be_anything(head_dim: int, dtype: torch.dtype) -> None:
    lengths, seen = [130, 200, 1, 700, 128], [1, 129, 1, 333, 64]
    check(lengths, head_dim, dtype, seen=seen)
    operands = qkv(sum(lengths), 3, head_dim, dtype, "cuda")
    wanted_PHE = dense_attention(*operands, lengths, seen)
    start = 0
    for length, keys in zip(lengths, seen, strict=True):
        for each in operands[1:]:
            each[start + keys : start + length] = torch.nan
        start += length
    assert torch.equal(dense_attention(*operands, lengths, seen), wanted_PHE)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_run_of_nan_leaves_its_neighbours_alone(head_dim: int) -> None:
    lengths = [100, 77, 100]
    operands = qkv(sum(lengths), 3, head_dim, torch.bfloat16, "cuda")
    wanted_PHE = dense_attention(*operands, lengths)
    for each in operands:
        each[100:177] = torch.nan
    out_PHE = dense_attention(*operands, lengths)
    assert torch.equal(out_PHE[:100], wanted_PHE[:100])
    assert torch.equal(out_PHE[177:], wanted_PHE[177:])
    assert out_PHE[100:177].isnan().all()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_run_among_others_equals_the_same_alone(head_dim: int) -> None:
    lengths = [333, 64, 1000, 7]
    operands = qkv(sum(lengths), 3, head_dim, torch.bfloat16, "cuda")
    out_PHE = dense_attention(*operands, lengths)
    start = 0
    for length in lengths:
        run = slice(start, start + length)
        alone_PHE = dense_attention(*(each[run] for each in operands), [length])
        assert torch.equal(out_PHE[run], alone_PHE)
        start += length


@pytest.mark.gpu
def test_other_tensors_on_a_gpu_are_torchs() -> None:
    for head_dim, dtype in ((160, torch.bfloat16), (20, torch.float16), (80, torch.float32)):
        operands = qkv(40, 3, head_dim, dtype, "cuda")
        assert not takes(*operands)
        wanted_PHE = plain(*operands, [33, 7], [33, 7])
        error_PHE = dense_attention(*operands, [33, 7]).double() - wanted_PHE
        assert float(error_PHE.norm() / wanted_PHE.norm()) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_maxima_that_grow_along_the_keys_rescale_earlier_sums(head_dim: int) -> None:
    q_PHE, k_PHE, v_PHE = qkv(1200, 3, head_dim, torch.bfloat16, "cuda")
    for ends in ((0.05, 6), (6, 0.05)):
        grown_PHE = k_PHE * torch.linspace(*ends, 1200, device="cuda").bfloat16()[:, None, None]
        wanted_PHE = reference.dense_attention(
            q_PHE.float(), grown_PHE.float(), v_PHE.float(), [1200], [1200]
        )
        error_PHE = dense_attention(q_PHE, grown_PHE, v_PHE, [1200]).float() - wanted_PHE
        assert float(error_PHE.norm() / wanted_PHE.norm()) < 1e-2


@pytest.mark.gpu
def test_operands_may_come_from_different_products() -> None:
    q_PHE, k_PHE, v_PHE = qkv(400, 3, 80, torch.bfloat16, "cuda")
    out_PHE = dense_attention(q_PHE, k_PHE, v_PHE, [400])
    assert torch.equal(dense_attention(q_PHE.contiguous(), k_PHE, v_PHE, [400]), out_PHE)
    assert torch.equal(dense_attention(q_PHE, k_PHE.contiguous(), v_PHE, [400]), out_PHE)


@pytest.mark.gpu
def test_a_captured_call_can_be_replayed() -> None:
    operands = qkv(700, 3, 80, torch.bfloat16, "cuda")
    wanted_PHE = dense_attention(*operands, [300, 400])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_PHE = dense_attention(*operands, [300, 400])
    for _ in range(3):
        out_PHE.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out_PHE, wanted_PHE)


def test_runs_are_not_first_copied_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call it once before"):
        package.work((701,), (701,), 128, 0)
