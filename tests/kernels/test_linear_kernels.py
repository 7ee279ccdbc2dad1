"""What the kernels that octavo_kernels.linear chooses from have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_tensors import assert_near, draw
from octavo_kernels import linear, linear_mid, linear_tall
from octavo_kernels.hopper_products import Launch, product, takes
from octavo_kernels.linear import reference

FEW, MID, TALL = linear.launch, linear_mid.launch, linear_tall.launch


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("kernel", "tokens"), [(FEW, 40), (MID, 90), (TALL, 640)])
def test_activations_are_right_for_large_gates_too(
    kernel: Launch, tokens: int, activation: str
) -> None:
    x_TI, weight_EI = draw(tokens, 256) * 8, draw(768, 256) * 8
    assert_near(
        product(kernel, x_TI, weight_EI, None, activation),
        reference.gated_linear(x_TI, weight_EI, activation, None),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("activation", list(reference.PLAIN_ACTIVATIONS))
def test_activations_are_right_for_large_sums_too(activation: str) -> None:
    x_TI, weight_OI = draw(640, 256) * 8, draw(768, 256) * 8
    assert_near(
        product(TALL, x_TI, weight_OI, None, f"plain_{activation}"),
        reference.activated_linear(x_TI, weight_OI, activation, None),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", ["plain_quick_gelu", "plain_gelu", "plain_gelu_tanh"])
def test_nothing_is_written_past_an_activated_result(epilogue: str) -> None:
    room_TO = torch.full((335, 280), 7.0, dtype=torch.bfloat16, device="cuda")
    result_TO = room_TO[1:-1, 8:-8]
    TALL(result_TO, draw(333, 128), draw(264, 128), None, epilogue)
    assert not bool((result_TO == 7.0).all())
    result_TO.fill_(7.0)
    assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "tokens", "rows", "features"),
    [
        (FEW, 5, 80, 256),
        (FEW, 33, 1000, 128),
        (MID, 93, 264, 1024),
        (MID, 200, 1000, 128),
        (TALL, 333, 264, 128),
    ],
)
def test_nothing_is_written_past_a_result(
    kernel: Launch, tokens: int, rows: int, features: int
) -> None:
    room_TO = torch.full((tokens + 2, rows + 16), 7.0, dtype=torch.bfloat16, device="cuda")
    result_TO = room_TO[1:-1, 8:-8]
    kernel(result_TO, draw(tokens, features), draw(rows, features), None, "add")
    assert not bool((result_TO == 7.0).all())
    result_TO.fill_(7.0)
    assert bool((room_TO == 7.0).all())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "tokens", "rows", "features"),
    [(FEW, 17, 4096, 4096), (MID, 128, 2048, 8192), (TALL, 600, 2048, 1024)],
)
def test_results_are_the_same_each_time(
    kernel: Launch, tokens: int, rows: int, features: int
) -> None:
    x_TI, weight_OI = draw(tokens, features), draw(rows, features)
    first_TO = product(kernel, x_TI, weight_OI, None, "silu")
    for _ in range(50):
        assert torch.equal(product(kernel, x_TI, weight_OI, None, "silu"), first_TO)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "tokens", "hidden", "largest"),
    [(FEW, 20, 1024, 3e-2), (MID, 100, 1024, 3e-2), (TALL, 700, 512, 2e-2)],
)
def test_products_that_follow_each_other_wait_for_each_other_in_a_graph(
    kernel: Launch, tokens: int, hidden: int, largest: float
) -> None:
    gate_up_EI, down_OI = draw(4096, hidden), draw(hidden, 2048) * hidden / 16384
    residual_TO, first_TO = draw(tokens, hidden), draw(tokens, hidden)

    def run() -> Tensor:
        residual_TO.copy_(first_TO)
        for _ in range(4):
            gated_TE = product(kernel, residual_TO, gate_up_EI, None, "silu")
            kernel(residual_TO, gated_TE, down_OI, None, "add")
        return residual_TO

    eager_TO = run().clone()
    expected_TO = first_TO.clone()
    for _ in range(4):
        gated_TE = reference.gated_linear(expected_TO, gate_up_EI, "silu", None)
        reference.linear_add_(expected_TO, gated_TE, down_OI, None)
    assert_near(eager_TO, expected_TO, norm=8e-3 if kernel is TALL else 3e-2, largest=largest)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        residual_TO.fill_(torch.nan)
        graph.replay()
        assert torch.equal(residual_TO, eager_TO)


@pytest.mark.gpu
def test_what_kernels_cannot_do_they_do_not_take() -> None:
    x_TI, weight_OI = draw(100, 64), draw(64, 64)
    assert takes(x_TI, weight_OI, gated=True)
    assert takes(x_TI, weight_OI[:56], gated=False)
    for x, weight, gated in (
        (x_TI.float(), weight_OI.float(), False),
        (x_TI[:, :60], weight_OI[:, :60].contiguous(), False),
        (x_TI, weight_OI[:60], False),
        (x_TI, weight_OI[:56], True),
        (x_TI, weight_OI[:0], False),
        (draw(100, 65)[:, :64], weight_OI, False),
        (x_TI.cpu(), weight_OI.cpu(), False),
    ):
        assert not takes(x, weight, gated=gated)
