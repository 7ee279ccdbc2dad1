from __future__ import annotations

import pytest
import torch

from kernel_tensors import assert_near, draw, poison
from octavo_kernels.hopper_products import product, takes
from octavo_kernels.linear import reference
from octavo_kernels.linear_mid import launch, pays, tiling

SHAPES = [  # (tokens, rows of the weight, inner features)
    (1, 16, 8),
    (65, 80, 200),
    (100, 1040, 1096),
    (128, 3072, 2048),
    (130, 208, 1096),
    (256, 2064, 72),
    (300, 1008, 520),
]


def test_tiles_fit_the_number_of_multiprocessors() -> None:
    for tokens, rows, features in ((128, 2048, 8192), (128, 4096, 14336), (256, 28672, 4096)):
        token_tiles = tokens // tiling.TILE_TOKENS
        tile_rows, splits = tiling.choose(token_tiles, rows, features)
        tiles = token_tiles * -(-rows // tile_rows)
        turns = -(-tiles // tiling.CLUSTERS[splits])
        assert tiles * splits >= 0.75 * turns * 132


def test_each_block_of_a_cluster_has_chunks_to_multiply() -> None:
    for features in (8, 64, 72, 200, 256, 1024):
        _, splits = tiling.choose(1, 256, features)
        assert splits == 1 or features > 64 * splits


def test_it_pays_for_sizes_that_were_measured() -> None:
    assert pays(128, 2048, 2048, gated=False)
    assert pays(256, 28672, 4096, gated=True)
    assert not pays(256, 4096, 4096, gated=False)
    assert not pays(192, 28672, 4096, gated=True)
    assert pays(80, 28672, 4096, gated=True)
    assert not pays(96, 6144, 4096, gated=False)
    assert not pays(128, 128256, 4096, gated=False)
    assert not pays(0, 4096, 4096, gated=False)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", list(tiling.CLUSTERS))
@pytest.mark.parametrize("tile_rows", tiling.TILE_ROWS)
def test_each_tiling_computes_the_reference(
    tile_rows: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if splits * tile_rows > 384 and splits > 1:
        return  # never chosen: sums would leave the ring too little room
    monkeypatch.setattr("octavo_kernels.linear_mid.choose", lambda *_: (tile_rows, splits))
    for tokens, rows, features in SHAPES:
        if features <= 64 * splits and splits > 1:
            continue
        dtype = torch.float16 if tokens % 2 else torch.bfloat16
        x_TI = draw(tokens, features + 8, dtype=dtype)[:, :features]
        weight_OI, bias_O = draw(rows, features, dtype=dtype), draw(rows, dtype=dtype)
        bias = None if tokens == 128 else bias_O
        assert takes(x_TI, weight_OI, gated=True)
        poison(tokens, rows, dtype=dtype)
        assert_near(
            product(launch, x_TI, weight_OI, bias, "store"),
            reference.linear(x_TI, weight_OI, bias),
        )
        residual_TO = draw(tokens, rows + 8, dtype=dtype)[:, :rows]
        expected_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias)
        launch(residual_TO, x_TI, weight_OI, bias, "add")
        assert_near(residual_TO, expected_TO)
        poison(tokens, rows // 2, dtype=dtype)
        assert_near(
            product(launch, x_TI, weight_OI, bias, "silu"),
            reference.gated_linear(x_TI, weight_OI, "silu", bias),
        )
