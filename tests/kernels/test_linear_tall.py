from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import linear as dispatch
from octavo_kernels.linear_tall import (
    TILE_COSTS,
    gated_linear,
    linear,
    linear_add_,
    pays,
    reference,
    takes,
)

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


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    return torch.randn(shape, device=device).mul_(shape[-1] ** -0.25).to(dtype)


def poison(*shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Leave NaN in the memory that the allocator hands out next."""
    torch.full(shape, torch.nan, dtype=dtype, device="cuda")


def take_tiles_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_kernels.linear_tall._tile", lambda *_: (rows, 1.0))


def assert_near(
    out: Tensor, expected: Tensor, *, norm: float = 2.5e-3, largest: float = 1e-2
) -> None:
    """Compare with what is rounded once, as stores are; an addition rounds twice."""
    error = out.float() - expected.float()
    assert float(error.norm() / expected.float().norm()) <= norm
    assert float(error.abs().max() / expected.float().abs().max()) <= largest


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
    with pytest.raises(ValueError, match=r"weight \[4, 8\] of torch.float16"):
        linear(x_TI, weight_OI.half())
    with pytest.raises(ValueError, match=r"the bias, \[3\]"):
        linear(x_TI, weight_OI, torch.ones(3))
    with pytest.raises(ValueError, match=r"the residual, \[2, 5\]"):
        linear_add_(torch.ones(2, 5), x_TI, weight_OI)
    with pytest.raises(ValueError, match="'relu' is not known"):
        gated_linear(x_TI, weight_OI, activation="relu")
    with pytest.raises(ValueError, match="as many ups as gates"):
        gated_linear(x_TI, torch.ones(3, 8), activation="silu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("tokens", "rows", "features"), SHAPES)
def test_each_tile_computes_the_reference(
    tokens: int, rows: int, features: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_TI = draw(tokens, features + 8, dtype=dtype)[:, :features]
    weight_OI, bias_O = draw(rows, features, dtype=dtype), draw(rows, dtype=dtype)
    residual_TO = draw(tokens, rows + 8, dtype=dtype)[:, :rows]
    assert takes(x_TI, weight_OI, row_multiple=16)
    for bias in (None, bias_O):
        stored_TO = reference.linear(x_TI, weight_OI, bias)
        added_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias)
        gated_TO = reference.gated_linear(x_TI, weight_OI, "silu", bias)
        for tile in TILE_COSTS:
            take_tiles_of(tile, monkeypatch)
            poison(tokens, rows, dtype=dtype)
            assert_near(linear(x_TI, weight_OI, bias), stored_TO)
            sum_TO = torch.nn.functional.pad(residual_TO, (0, 8))[:, :rows]
            assert_near(linear_add_(sum_TO, x_TI, weight_OI, bias), added_TO, norm=8e-3)
            poison(tokens, rows // 2, dtype=dtype)
            assert_near(gated_linear(x_TI, weight_OI, activation="silu", bias_E=bias), gated_TO)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_are_right_for_large_gates_too(activation: str) -> None:
    x_TI, weight_EI = draw(640, 256) * 8, draw(768, 256) * 8
    assert_near(
        gated_linear(x_TI, weight_EI, activation=activation),
        reference.gated_linear(x_TI, weight_EI, activation, None),
    )


@pytest.mark.gpu
def test_nothing_is_written_past_a_result() -> None:
    tokens, rows, features = 333, 264, 128
    room_TO = torch.full((tokens + 2, rows + 16), 7.0, dtype=torch.bfloat16, device="cuda")
    residual_TO = room_TO[1:-1, 8:-8]
    linear_add_(residual_TO, draw(tokens, features), draw(rows, features))
    residual_TO.fill_(7.0)
    assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
def test_a_token_has_the_same_result_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    x_TI, weight_EI = draw(5000, 1024), draw(2048, 1024)
    all_TO = gated_linear(x_TI, weight_EI, activation="silu")
    for tile in TILE_COSTS:
        take_tiles_of(tile, monkeypatch)
        for begin, end in ((0, 1), (100, 900), (4000, 5000)):
            some_TO = gated_linear(x_TI[begin:end], weight_EI, activation="silu")
            assert torch.equal(some_TO, all_TO[begin:end])


@pytest.mark.gpu
def test_products_that_follow_each_other_wait_for_each_other_in_a_graph() -> None:
    gate_up_EI, down_OI = draw(4096, 512), draw(512, 2048) / 64
    residual_TO, first_TO = draw(700, 512), draw(700, 512)

    def run() -> None:
        residual_TO.copy_(first_TO)
        for _ in range(4):
            gated_TE = gated_linear(residual_TO, gate_up_EI, activation="silu")
            linear_add_(residual_TO, gated_TE, down_OI)

    run()
    expected_TO = first_TO.clone()
    for _ in range(4):
        gated_TE = reference.gated_linear(expected_TO, gate_up_EI, "silu", None)
        reference.linear_add_(expected_TO, gated_TE, down_OI, None)
    eager_TO = residual_TO.clone()
    assert_near(eager_TO, expected_TO, norm=8e-3, largest=2e-2)  # four sums, rounded twice each
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(5):
        residual_TO.fill_(torch.nan)
        graph.replay()
        assert torch.equal(residual_TO, eager_TO)


@pytest.mark.gpu
def test_what_the_kernel_cannot_do_is_refused() -> None:
    x_TI, weight_OI = draw(600, 64), draw(64, 64)
    for x, weight in (
        (x_TI.float(), weight_OI.float()),
        (x_TI[:, :60], weight_OI[:, :60].contiguous()),
        (x_TI, weight_OI[:60]),
        (draw(600, 65)[:, :64], weight_OI),
    ):
        assert not takes(x, weight)
        with pytest.raises(ValueError, match="need a Hopper GPU"):
            linear(x, weight)


@pytest.mark.gpu
def test_it_pays_where_tiles_fill_the_gpu() -> None:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    full = processors // 2 * 256  # rows that give each pair of multiprocessors a unit
    assert pays(256, full, 0)
    assert pays(8192, full, 0)
    assert not pays(256, full + 1024, 0)
    assert not pays(100, full, 0)


@pytest.mark.gpu
def test_linear_leaves_gates_and_sums_of_many_tokens_to_it() -> None:
    full = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 256
    x_TI, gate_up_EI, weight_OI = draw(2048, 64), draw(full, 64), draw(full, 64)
    residual_TO = draw(2048, full)
    expected_TO = linear_add_(residual_TO.clone(), x_TI, weight_OI)
    assert torch.equal(dispatch.linear_add_(residual_TO, x_TI, weight_OI), expected_TO)
    for tokens in (1024, 2048):
        assert torch.equal(
            dispatch.gated_linear(x_TI[:tokens], gate_up_EI, activation="silu"),
            gated_linear(x_TI[:tokens], gate_up_EI, activation="silu"),
        )
