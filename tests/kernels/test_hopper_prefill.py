from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo_kernels.hopper_prefill import prefill
from prefill_case import Case, expected


def dense(arguments: dict[str, Any], row: int) -> Tensor:
    """One row by torch's attention, keys and values gathered by hand."""
    context = int(arguments["context_lens_R"][row])
    cache, slot = arguments["cache"], int(arguments["table_rows_R"][row])
    block = cache.shape[3]
    places = [(int(arguments["table_SB"][slot, p // block]), p % block) for p in range(context)]
    k_CKD, v_CKD = (torch.stack([cache[b, i, :, o] for b, o in places]) for i in (0, 1))
    start, end = arguments["query_starts_R1"][row : row + 2].tolist()
    mask = torch.ones(end - start, context, dtype=torch.bool).tril(context - (end - start))
    out_HQD = torch.nn.functional.scaled_dot_product_attention(
        arguments["q_THD"][start:end].transpose(0, 1).double(),
        k_CKD.transpose(0, 1).double(),
        v_CKD.transpose(0, 1).double(),
        attn_mask=mask,
        enable_gqa=True,
    )
    return out_HQD.transpose(0, 1)


def test_rows_equal_dense_attention_over_their_own_blocks() -> None:
    arguments = Case(
        query_lens=[5, 1, 0, 20], prefixes=[0, 17, 3, 30], dtype=torch.float32, head_dim=64
    ).arguments()
    prefill(**arguments)
    starts = arguments["query_starts_R1"].tolist()
    for row in (0, 1, 3):
        out_QHD = arguments["out_THD"][starts[row] : starts[row + 1]]
        torch.testing.assert_close(out_QHD.double(), dense(arguments, row), rtol=1e-4, atol=1e-5)
    assert arguments["out_THD"][26:].isnan().all()


def test_rows_before_the_first_are_left_alone() -> None:
    arguments = Case(query_lens=[4, 3], prefixes=[0, 0], first_row=1).arguments()
    prefill(**arguments)
    assert arguments["out_THD"][:4].isnan().all()
    assert not arguments["out_THD"][4:7].isnan().any()


def test_a_window_counts_the_query_itself() -> None:
    arguments = Case(query_lens=[9], prefixes=[20], dtype=torch.float32).arguments()
    prefill(**arguments, window=1)
    cache, slot = arguments["cache"], int(arguments["table_rows_R"][0])
    for query in range(9):
        p = 20 + query
        v_KD = cache[int(arguments["table_SB"][slot, p // 16]), 1, :, p % 16]
        out_HD = arguments["out_THD"][query]
        torch.testing.assert_close(out_HD, v_KD.repeat_interleave(4, dim=0))


def test_sinks_take_part_in_the_softmax_without_a_value() -> None:
    arguments = Case(query_lens=[6], prefixes=[4], dtype=torch.float32).arguments()
    prefill(**arguments)
    plain_THD = arguments["out_THD"].clone()
    prefill(**arguments, sinks_H=torch.full((8,), -torch.inf))
    torch.testing.assert_close(arguments["out_THD"][:6], plain_THD[:6])
    prefill(**arguments, sinks_H=torch.full((8,), 50.0))
    assert arguments["out_THD"][:6].abs().max() < 1e-6


def test_scales_multiply_keys_and_values() -> None:
    arguments = Case(query_lens=[6], prefixes=[4], dtype=torch.float32).arguments()
    prefill(**arguments, k_scale=0.5, v_scale=3.0)
    out_THD = arguments["out_THD"].clone()
    arguments["cache"][:, 0] *= 0.5
    arguments["cache"][:, 1] *= 3.0
    prefill(**arguments)
    torch.testing.assert_close(out_THD[:6], arguments["out_THD"][:6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window=0"),
        ({"window": 4, "causal": False}, "window=4"),
        ({"scale": 0.0}, r"scale=0\.0"),
        ({"softcap": -1.0}, r"softcap=-1\.0"),
        ({"sinks_H": torch.zeros(3)}, r"sinks of shape \[3\]"),
        ({"first_row": 2}, "first_row=2"),
        ({"out_THD": torch.zeros(9, 4, 128)}, r"out has \[4, 128\] a token"),
        ({"cache": torch.zeros(4, 2, 3, 16, 128)}, "8 query heads for 3 kv heads"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = Case(query_lens=[4], prefixes=[0]).arguments()
    with pytest.raises(ValueError, match=message):
        prefill(**(arguments | change))


def check(case: Case, **options: Any) -> None:
    """The kernel equals the reference, and writes nothing but its rows."""
    case.device = "cuda"
    arguments = case.arguments(seed=sum(case.query_lens)) | options
    want_THD = expected(arguments)
    prefill(**arguments)
    out_THD = arguments["out_THD"].float()
    written_THD = want_THD.isfinite()
    assert torch.equal(out_THD.isfinite(), written_THD)
    error, want = (out_THD - want_THD)[written_THD], want_THD[written_THD]
    relative = float(error.norm() / want.norm())
    print(f"{case.query_lens} {case.prefixes} {options}: {relative:.1e} {error.abs().max():.1e}")
    assert relative < 1e-2
    assert float(error.abs().max()) < 4e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("query_lens", "prefixes"),
    [
        ([128], [0]),
        ([1], [0]),
        ([1], [700]),
        ([1000], [0]),
        ([300], [1111]),
        ([7, 0, 513, 64, 1, 200], [0, 5, 0, 1000, 129, 15]),
    ],
)
def test_ragged_rows_equal_the_reference(
    query_lens: list[int], prefixes: list[int], head_dim: int, dtype: torch.dtype
) -> None:
    check(Case(query_lens=query_lens, prefixes=prefixes, head_dim=head_dim, dtype=dtype))


FLOAT8: dict[str, Any] = {"cache_dtype": torch.float8_e4m3fn}
SCALES = {"k_scale": 0.5, "v_scale": 2.0}


def test_a_float8_cache_is_scaled() -> None:
    case = Case(query_lens=[6, 20], prefixes=[4, 30], dtype=torch.float32, **FLOAT8)
    arguments = case.arguments()
    prefill(**arguments, **SCALES)
    wide = {**arguments, "cache": arguments["cache"].float(), "out_THD": torch.empty(31, 8, 128)}
    wide["cache"][:, 0] *= 0.5
    wide["cache"][:, 1] *= 2.0
    prefill(**wide)
    torch.testing.assert_close(arguments["out_THD"][:26], wide["out_THD"][:26])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("query_lens", "prefixes", "block_tokens"),
    [
        ([1], [0], 16),
        ([128], [0], 8),
        ([1000], [0], 32),
        ([300], [1111], 64),
        ([700, 3], [2000, 5], 128),
        ([7, 0, 513, 64, 1, 200], [0, 5, 0, 1000, 129, 15], 16),
        ([20, 1, 70, 0], [6000, 0, 515, 3], 16),
    ],
)
def test_a_float8_cache_equals_the_reference(
    query_lens: list[int],
    prefixes: list[int],
    block_tokens: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    case = Case(query_lens=query_lens, prefixes=prefixes, head_dim=head_dim, dtype=dtype, **FLOAT8)
    case.block_tokens = block_tokens
    check(case, **SCALES)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("heads", [2, 14, 128])
def test_a_float8_cache_knows_all_options_and_groups(heads: int, head_dim: int) -> None:
    lens = np.random.default_rng(3).integers(0, 300, 40).tolist()
    prefixes = np.random.default_rng(4).integers(0, 900, 40).tolist()
    case = Case(query_lens=lens, prefixes=prefixes, first_row=5, heads=heads, **FLOAT8)
    case.head_dim = head_dim
    sinks_H = torch.linspace(-2, 6, heads, device="cuda")
    check(case, **SCALES, window=77, softcap=20.0, sinks_H=sinks_H)
    check(case, causal=False)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (14, 2), (10, 2), (16, 1), (128, 1)])
def test_any_group_of_query_heads_fits(heads: int, kv_heads: int, head_dim: int) -> None:
    case = Case(query_lens=[150, 33], prefixes=[77, 0], heads=heads, kv_heads=kv_heads)
    case.head_dim = head_dim
    check(case)


@pytest.mark.gpu
@pytest.mark.parametrize("block_tokens", [8, 32, 64, 128])
def test_any_block_size_equals_the_reference(block_tokens: int) -> None:
    check(Case(query_lens=[150, 33], prefixes=[77, 300], block_tokens=block_tokens))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"window": 1},
        {"window": 100},
        {"window": 1024},
        {"softcap": 5.0},
        {"k_scale": 0.5, "v_scale": 2.0},
        {"softcap": 20.0, "window": 77, "sinks_H": "float"},
        {"sinks_H": "element"},
    ],
)
def test_options_equal_the_reference(options: dict[str, Any], head_dim: int) -> None:
    options = dict(options)
    if sinks := options.get("sinks_H"):
        dtype = torch.float32 if sinks == "float" else torch.bfloat16
        options["sinks_H"] = torch.linspace(-2, 6, 8, device="cuda").to(dtype)
    case = Case(query_lens=[260, 5, 700], prefixes=[400, 200, 0], head_dim=head_dim)
    check(case, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("options", [{}, {"sinks_H": True}, {"window": 2500, "softcap": 9.0}])
def test_short_queries_with_long_contexts_are_shared_between_processors(
    options: dict[str, Any], head_dim: int
) -> None:
    options = dict(options)
    if "sinks_H" in options:
        options["sinks_H"] = torch.linspace(-2, 9, 8, device="cuda")
    prefixes = [6000, 0, 515, 3]
    check(Case(query_lens=[20, 1, 70, 0], prefixes=prefixes, head_dim=head_dim), **options)
    check(Case(query_lens=[1], prefixes=[9000], kv_heads=1, head_dim=head_dim), **options)
    case = Case(query_lens=[20, 70], prefixes=[4000, 515], head_dim=head_dim)
    check(case, max_context=4020, **options)


@pytest.mark.gpu
def test_many_rows_after_the_first_equal_the_reference() -> None:
    lens = np.random.default_rng(3).integers(0, 60, 300).tolist()
    prefixes = np.random.default_rng(4).integers(0, 90, 300).tolist()
    check(Case(query_lens=lens, prefixes=prefixes, first_row=41))


@pytest.mark.gpu
def test_maxima_that_grow_along_the_context_rescale_earlier_sums() -> None:
    case = Case(query_lens=[300], prefixes=[900], device="cuda")
    for ends in ((0.05, 6), (6, 0.05)):
        arguments = case.arguments()
        growth_B = torch.linspace(*ends, 75, device="cuda").bfloat16()
        blocks_B = arguments["table_SB"][int(arguments["table_rows_R"][0]), :75].long()
        arguments["cache"][blocks_B, 0] *= growth_B[:, None, None, None]
        want_THD = expected(arguments)[:300]
        prefill(**arguments)
        error_THD = arguments["out_THD"][:300].float() - want_THD
        assert float(error_THD.norm() / want_THD.norm()) < 1e-2


@pytest.mark.gpu
def test_a_captured_call_can_be_replayed_with_other_contexts() -> None:
    arguments = Case(query_lens=[40, 90], prefixes=[500, 700], device="cuda").arguments()
    prefill(**arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prefill(**arguments)
    arguments["context_lens_R"] -= 123
    want_THD = expected(arguments)[:130]
    for _ in range(3):
        arguments["out_THD"].fill_(torch.nan)
        graph.replay()
        error_THD = arguments["out_THD"][:130].float() - want_THD
        assert float(error_THD.norm() / want_THD.norm()) < 1e-2


@pytest.mark.gpu
def test_the_kernel_refuses_what_it_cannot_do() -> None:
    arguments = Case(query_lens=[4], prefixes=[0], device="cuda").arguments()
    with pytest.raises(ValueError, match=r"torch\.float8_e5m2; all must"):
        prefill(**(arguments | {"cache": arguments["cache"].to(torch.float8_e5m2)}))
    narrow = Case(query_lens=[4], prefixes=[0], head_dim=32, device="cuda").arguments()
    with pytest.raises(ValueError, match="head_dim=32"):
        prefill(**narrow)
