from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels.linear_mid import (
    gated_linear,
    linear,
    linear_add_,
    pays,
    reference,
    takes,
    tiling,
)

SHAPES = [  # (tokens, rows of the weight, inner features)
    (1, 16, 8),
    (65, 80, 200),
    (100, 1040, 1096),
    (128, 3072, 2048),
    (130, 208, 1096),
    (256, 2064, 72),
    (300, 1008, 520),
]


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    return torch.randn(shape, device=device).mul_(shape[-1] ** -0.25).to(dtype)


def poison(*shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Leave NaN in the memory that the allocator hands out next."""
    torch.full(shape, torch.nan, dtype=dtype, device="cuda")


def assert_near(out: Tensor, expected: Tensor, *, norm: float = 4e-3) -> None:
    """Compare with what is rounded once."""
    error = out.float() - expected.float()
    assert float(error.norm() / expected.float().norm()) <= norm
    assert float(error.abs().max() / expected.float().abs().max()) <= 2e-2


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gates_stand_before_what_they_gate(activation: str) -> None:
    x_TI, weight_EI, bias_E = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    gate_TO, up_TO = (x_TI @ weight_EI.T + bias_E).chunk(2, dim=-1)
    torch.testing.assert_close(
        gated_linear(x_TI, weight_EI, activation=activation, bias_E=bias_E),
        reference.ACTIVATIONS[activation](gate_TO) * up_TO,
    )


def test_a_residual_is_added_to_in_place() -> None:
    x_TI, weight_OI, bias_O = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    residual_TO = torch.randn(5, 12)
    expected_TO = residual_TO + linear(x_TI, weight_OI, bias_O)
    assert linear_add_(residual_TO, x_TI, weight_OI, bias_O) is residual_TO
    torch.testing.assert_close(residual_TO, expected_TO)


def test_no_tokens_give_no_rows() -> None:
    assert linear(torch.ones(0, 8), torch.ones(16, 8)).shape == (0, 16)
    assert gated_linear(torch.ones(0, 8), torch.ones(16, 8), activation="silu").shape == (0, 8)


def test_what_does_not_fit_is_refused() -> None:
    x_TI, weight_OI = torch.ones(2, 8), torch.ones(4, 8)
    with pytest.raises(ValueError, match=r"x \[2, 8\] of torch.float32 and weight \[4, 7\]"):
        linear(x_TI, torch.ones(4, 7))
    with pytest.raises(ValueError, match=r"strides \(1, 4\)"):
        linear(x_TI, torch.ones(8, 4).T)
    with pytest.raises(ValueError, match=r"the bias, \[3\]"):
        linear(x_TI, weight_OI, torch.ones(3))
    with pytest.raises(ValueError, match=r"the residual, \[2, 5\]"):
        linear_add_(torch.ones(2, 5), x_TI, weight_OI)
    with pytest.raises(ValueError, match="'relu' is not known"):
        gated_linear(x_TI, weight_OI, activation="relu")
    with pytest.raises(ValueError, match="as many ups as gates"):
        gated_linear(x_TI, torch.ones(3, 8), activation="silu")


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
        assert takes(x_TI, weight_OI, row_multiple=16)
        poison(tokens, rows, dtype=dtype)
        assert_near(linear(x_TI, weight_OI, bias), reference.linear(x_TI, weight_OI, bias))
        residual_TO = draw(tokens, rows + 8, dtype=dtype)[:, :rows]
        expected_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias)
        assert_near(linear_add_(residual_TO, x_TI, weight_OI, bias), expected_TO)
        poison(tokens, rows // 2, dtype=dtype)
        assert_near(
            gated_linear(x_TI, weight_OI, activation="silu", bias_E=bias),
            reference.gated_linear(x_TI, weight_OI, "silu", bias),
        )


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_are_right_for_large_gates_too(activation: str) -> None:
    x_TI, weight_EI = draw(90, 256) * 8, draw(768, 256) * 8
    assert_near(
        gated_linear(x_TI, weight_EI, activation=activation),
        reference.gated_linear(x_TI, weight_EI, activation, None),
    )


@pytest.mark.gpu
def test_nothing_is_written_past_a_result() -> None:
    for tokens, rows, features in ((93, 264, 1024), (200, 1000, 128)):
        room_TO = torch.full((tokens + 2, rows + 16), 7.0, dtype=torch.bfloat16, device="cuda")
        residual_TO = room_TO[1:-1, 8:-8]
        linear_add_(residual_TO, draw(tokens, features), draw(rows, features))
        residual_TO.fill_(7.0)
        assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
def test_results_are_the_same_each_time() -> None:
    x_TI, weight_OI = draw(128, 8192), draw(2048, 8192)
    first_TO = linear(x_TI, weight_OI)
    assert all(torch.equal(linear(x_TI, weight_OI), first_TO) for _ in range(50))


@pytest.mark.gpu
def test_products_that_follow_each_other_wait_for_each_other_in_a_graph() -> None:
    gate_up_EI, down_OI = draw(4096, 1024), draw(1024, 2048) / 16
    residual_TO, first_TO = draw(100, 1024), draw(100, 1024)

    def run() -> None:
        residual_TO.copy_(first_TO)
        for _ in range(4):
            gated_TE = gated_linear(residual_TO, gate_up_EI, activation="silu")
            linear_add_(residual_TO, gated_TE, down_OI)

    run()
    eager_TO = residual_TO.clone()
    expected_TO = first_TO.clone()
    for _ in range(4):
        gated_TE = reference.gated_linear(expected_TO, gate_up_EI, "silu", None)
        reference.linear_add_(expected_TO, gated_TE, down_OI, None)
    assert_near(eager_TO, expected_TO, norm=3e-2)  # errors of four layers
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        residual_TO.fill_(torch.nan)
        graph.replay()
        assert torch.equal(residual_TO, eager_TO)


@pytest.mark.gpu
def test_what_the_kernel_cannot_do_is_refused() -> None:
    x_TI, weight_OI = draw(100, 64), draw(64, 64)
    for x, weight in (
        (x_TI.float(), weight_OI.float()),
        (x_TI[:, :60], weight_OI[:, :60].contiguous()),
        (x_TI, weight_OI[:60]),
        (draw(100, 65)[:, :64], weight_OI),
    ):
        assert not takes(x, weight)
        with pytest.raises(ValueError, match="need a Hopper GPU"):
            linear(x, weight)
