from __future__ import annotations

from functools import partial

import pytest
import torch

from kernel_tensors import assert_near, draw, poison
from octavo_kernels.hopper_products import product, takes
from octavo_kernels.linear import reference
from octavo_kernels.linear_tall import TILE_COSTS, launch, pays

SHAPES = [  # (tokens, rows of the weight, inner features)
    (1, 16, 8),
    (64, 48, 72),
    (129, 272, 64),
    (300, 1008, 200),
    (512, 6144, 4096),
    (777, 8208, 136),
    (1000, 3072, 2048),
    (2049, 2064, 1096),
    (8200, 2048, 512),
]

assert_rounded_once = partial(assert_near, norm=2.5e-3, largest=1e-2)


def take_tiles_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_kernels.linear_tall.best_tile", lambda *_: (rows, 1.0))


def test_it_pays_where_tiles_fill_the_gpu() -> None:
    full = 132 // 2 * 256  # rows that give each pair of multiprocessors a unit of 256 tokens
    assert pays(768, full, 4096, "silu", 132)
    assert pays(8192, full, 4096, "add", 132)
    assert not pays(768, full + 1024, 4096, "silu", 132)
    assert not pays(600, full, 4096, "silu", 132)


def test_it_pays_from_some_tokens_on_and_with_an_epilogue_alone() -> None:
    full = 132 // 2 * 256
    assert not pays(512, full, 4096, "silu", 132)
    assert not pays(1024, full, 4096, "add", 132)
    assert pays(2048, full, 4096, "add", 132)
    assert not pays(8192, full, 4096, "store", 132)
    assert pays(2048, full + 1024, 4096, "gelu", 132)
    assert pays(2048, full, 4096, "plain_gelu", 132)
    assert not pays(2047, full, 4096, "plain_gelu", 132)


def test_it_may_leave_more_idle_where_it_saves_a_pass() -> None:
    tokens, rows = 27380, 1280  # 8.1 rounds of tiles take as long as 9
    assert not pays(tokens, rows, 1280, "add", 132)
    assert pays(tokens, rows, 1280, "add", 132, has_bias=True)
    assert pays(tokens, rows, 1280, "plain_gelu", 132)
    for features in (5120, 20480):  # of a long product that is little
        assert not pays(tokens, rows, features, "add", 132, has_bias=True)
        assert not pays(tokens, rows, features, "plain_gelu", 132)
    assert pays(tokens, 4 * rows, 5120, "add", 132, has_bias=True)  # tiles that fill the GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows", "features"), SHAPES)
def test_each_tile_computes_the_reference(
    tokens: int, rows: int, features: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_TI = draw(tokens, features + 8, dtype=dtype)[:, :features]
    weight_OI, bias_O = draw(rows, features, dtype=dtype), draw(rows, dtype=dtype)
    residual_TO = draw(tokens, rows + 8, dtype=dtype)[:, :rows]
    assert takes(x_TI, weight_OI, gated=True)
    for bias in (None, bias_O):
        product_TO = reference.linear(x_TI, weight_OI, bias)
        added_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias)
        gated_TO = reference.gated_linear(x_TI, weight_OI, "silu", bias)
        for tile in TILE_COSTS:
            take_tiles_of(tile, monkeypatch)
            sum_TO = torch.zeros_like(residual_TO)
            launch(sum_TO, x_TI, weight_OI, bias, "add")
            assert_rounded_once(sum_TO, product_TO)
            sum_TO = torch.nn.functional.pad(residual_TO, (0, 8))[:, :rows]
            launch(sum_TO, x_TI, weight_OI, bias, "add")
            assert_near(sum_TO, added_TO, norm=8e-3, largest=1e-2)  # rounded twice
            poison(tokens, rows // 2, dtype=dtype)
            assert_rounded_once(product(launch, x_TI, weight_OI, bias, "silu"), gated_TO)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", list(reference.PLAIN_ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows", "features"), SHAPES)
def test_each_tile_activates_what_has_no_gates(
    tokens: int,
    rows: int,
    features: int,
    dtype: torch.dtype,
    activation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x_TI = draw(tokens, features + 8, dtype=dtype).mul_(3)[:, :features]
    weight_OI, bias_O = draw(rows, features, dtype=dtype), draw(rows, dtype=dtype)
    for bias in (None, bias_O):
        expected_TO = reference.activated_linear(x_TI, weight_OI, activation, bias)
        for tile in TILE_COSTS:
            take_tiles_of(tile, monkeypatch)
            poison(tokens, rows, dtype=dtype)
            found_TO = product(launch, x_TI, weight_OI, bias, f"plain_{activation}")
            assert_rounded_once(found_TO, expected_TO)


@pytest.mark.gpu
def test_a_token_has_the_same_result_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    x_TI, weight_EI = draw(5000, 1024), draw(2048, 1024)
    all_TO = product(launch, x_TI, weight_EI, None, "silu")
    for tile in TILE_COSTS:
        take_tiles_of(tile, monkeypatch)
        for begin, end in ((0, 1), (100, 900), (4000, 5000)):
            some_TO = product(launch, x_TI[begin:end], weight_EI, None, "silu")
            assert torch.equal(some_TO, all_TO[begin:end])
