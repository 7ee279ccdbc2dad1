from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernel_tensors import assert_near, draw, poison
from octavo_kernels import linear as op
from octavo_kernels import linear_mid, linear_tall
from octavo_kernels.hopper_products import Launch, product
from octavo_kernels.linear import activated_linear, gated_linear, linear, linear_add_, reference

SHAPES = [  # (rows of the weight, inner features): ragged, one chunk, models', many rows
    (16, 8),
    (64, 64),
    (80, 200),
    (208, 1096),
    (1024, 4096),
    (3072, 2048),
    (2048, 8192),
    (6144, 4096),
    (16400, 200),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_summed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    x_TI, weight_OI, bias_O, residual_TO = (
        draw(*shape, dtype=dtype, device="cpu") for shape in ((3, 512), (8, 512), (8,), (3, 8))
    )
    rounding = torch.finfo(dtype).eps
    exact_TO = x_TI.double() @ weight_OI.double().T + bias_O.double()
    torch.testing.assert_close(
        linear(x_TI, weight_OI, bias_O).double(), exact_TO, rtol=rounding, atol=1e-5
    )
    before_TO = residual_TO.double()
    assert linear_add_(residual_TO, x_TI, weight_OI, bias_O) is residual_TO
    torch.testing.assert_close(residual_TO.double(), before_TO + exact_TO, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gates_stand_before_what_they_gate(activation: str) -> None:
    x_TI, weight_EI, bias_E = torch.randn(5, 16), torch.randn(12, 16), torch.randn(12)
    gate_TO, up_TO = (x_TI @ weight_EI.T + bias_E).chunk(2, dim=-1)
    torch.testing.assert_close(
        gated_linear(x_TI, weight_EI, activation=activation, bias_E=bias_E),
        reference.ACTIVATIONS[activation](gate_TO) * up_TO,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_activated_product_is_rounded_once(dtype: torch.dtype) -> None:
    x_TI, weight_OI, bias_O = (
        draw(*shape, dtype=dtype, device="cpu") for shape in ((5, 64), (12, 64), (12,))
    )
    sums_TO = x_TI.double() @ weight_OI.double().T + bias_O.double()
    for activation, exact_TO in (
        ("quick_gelu", sums_TO * torch.sigmoid(1.702 * sums_TO)),
        ("gelu", torch.nn.functional.gelu(sums_TO)),
        ("gelu_tanh", torch.nn.functional.gelu(sums_TO, approximate="tanh")),
    ):
        found_TO = activated_linear(x_TI, weight_OI, bias_O, activation=activation)
        assert found_TO.dtype is dtype
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(found_TO.double(), exact_TO, rtol=rounding, atol=1e-5)


def test_no_tokens_give_no_rows() -> None:
    assert activated_linear(torch.ones(0, 8), torch.ones(4, 8), activation="gelu").shape == (0, 4)
    assert linear(torch.ones(0, 8), torch.ones(16, 8)).shape == (0, 16)
    assert gated_linear(torch.ones(0, 8), torch.ones(16, 8), activation="silu").shape == (0, 8)


def test_what_does_not_fit_is_refused() -> None:
    x_TI, weight_OI = torch.ones(2, 8), torch.ones(4, 8)
    with pytest.raises(ValueError, match=r"x of shape \[2, 8\] and weight of shape \[4, 7\]"):
        linear(x_TI, torch.ones(4, 7))
    with pytest.raises(ValueError, match=r"strides \(1, 4\)"):
        linear(x_TI, torch.ones(8, 4).T)
    with pytest.raises(ValueError, match=r"the weight, torch.float16"):
        linear(x_TI, weight_OI.half())
    with pytest.raises(ValueError, match=r"the bias, \[3\]"):
        linear(x_TI, weight_OI, torch.ones(3))
    with pytest.raises(ValueError, match=r"the residual, \[2, 5\]"):
        linear_add_(torch.ones(2, 5), x_TI, weight_OI)
    with pytest.raises(ValueError, match="'relu' is not known"):
        gated_linear(x_TI, weight_OI, activation="relu")
    with pytest.raises(
        ValueError, match="activated_linear: 'silu' is not known; known: quick_gelu"
    ):
        activated_linear(x_TI, weight_OI, activation="silu")
    with pytest.raises(ValueError, match="3 rows"):
        gated_linear(x_TI, torch.ones(3, 8), activation="silu")


@pytest.mark.parametrize(
    ("epilogue", "tokens", "rows", "features", "kernel"),
    [
        ("store", 0, 4096, 4096, None),
        ("store", 1, 4096, 4096, op.launch),
        ("add", 64, 4096, 14336, op.launch),
        ("silu", 64, 28672, 4096, op.launch),
        ("store", 65, 4096, 4096, None),
        ("silu", 65, 28672, 4096, linear_mid.launch),
        ("store", 128, 6144, 4096, linear_mid.launch),
        ("add", 128, 4096, 14336, linear_mid.launch),
        ("store", 128, 128256, 4096, None),
        ("silu", 192, 28672, 4096, None),
        ("gelu", 256, 28672, 4096, linear_mid.launch),
        ("add", 256, 4096, 14336, None),
        ("silu", 512, 132 * 128, 4096, None),
        ("silu", 1024, 28672, 4096, linear_tall.launch),
        ("silu", 1100, 28672, 4096, None),  # tiles do not fill the GPU
        ("silu", 2100, 28672, 4096, linear_tall.launch),  # gates never go through memory
        ("add", 2047, 4096, 4096, None),
        ("add", 4096, 4096, 4096, linear_tall.launch),
        ("store", 4096, 4096, 4096, None),
        ("plain_gelu", 0, 5120, 1280, None),
        ("plain_gelu", 40, 5120, 1280, None),  # `linear`, then the activation
        ("plain_gelu", 128, 5120, 1280, None),
        ("plain_gelu", 2047, 5120, 1280, None),
        ("plain_quick_gelu", 27380, 5120, 1280, linear_tall.launch),
        ("plain_gelu_tanh", 2048, 4304, 1152, linear_tall.launch),
    ],
)
def test_a_product_is_left_to_what_was_fastest(
    epilogue: str,
    tokens: int,
    rows: int,
    features: int,
    kernel: Launch | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "takes", lambda *_, **__: True)
    monkeypatch.setattr(op, "num_processors", lambda _: 132)
    x_TI = torch.empty(tokens, features, device="meta")
    weight_OI = torch.empty(rows, features, device="meta")
    assert op.kernel_for("linear", x_TI, weight_OI, epilogue, None, False) is kernel


@pytest.mark.parametrize(
    ("tokens", "features", "kernel"),
    [(27380, 1280, linear_tall.launch), (27380, 5120, None), (2000, 1280, None)],
)
def test_a_sum_with_a_bias_may_leave_more_of_the_gpu_idle(
    tokens: int, features: int, kernel: Launch | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "takes", lambda *_, **__: True)
    monkeypatch.setattr(op, "num_processors", lambda _: 132)
    x_TI = torch.empty(tokens, features, device="meta")
    weight_OI = torch.empty(1280, features, device="meta")
    call = (x_TI, weight_OI, "add", None, False)
    assert op.kernel_for("linear_add_", *call) is None
    assert op.kernel_for("linear_add_", *call, has_bias=True) is kernel


def test_a_residual_whose_rows_begin_elsewhere_is_left_to_cublas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "takes", lambda *_, **__: True)
    monkeypatch.setattr(op, "num_processors", lambda _: 132)
    weight_OI = torch.empty(4096, 4096, device="meta")
    for tokens, step, kernel in (
        (8, 2, op.launch),
        (8, 1, None),
        (128, 4, linear_mid.launch),
        (128, 2, None),
        (4096, 8, linear_tall.launch),
        (4096, 4, None),
    ):
        room_TO = torch.empty(tokens, 4096 + step, dtype=torch.bfloat16, device="meta")
        x_TI = torch.empty(tokens, 4096, device="meta")
        found = op.kernel_for("linear_add_", x_TI, weight_OI, "add", room_TO[:, :4096], False)
        assert found is kernel


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "features"), SHAPES)
def test_the_kernel_computes_the_reference(rows: int, features: int, dtype: torch.dtype) -> None:
    weight_OI, bias_O = draw(rows, features, dtype=dtype), draw(rows, dtype=dtype)
    torch.cuda.synchronize()
    for tokens in (1, 3, 8, 9, 16, 21, 32, 33, 64):
        x_TI = draw(tokens, features + 8, dtype=dtype)[:, :features]
        for bias in (None, bias_O):
            poison(tokens, rows, dtype=dtype)
            assert_near(linear(x_TI, weight_OI, bias), reference.linear(x_TI, weight_OI, bias))
        residual_TO = draw(tokens, rows, dtype=dtype)
        expected_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias_O)
        assert_near(linear_add_(residual_TO, x_TI, weight_OI, bias_O), expected_TO)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "features"), SHAPES)
def test_the_gated_kernel_computes_the_reference(rows: int, features: int, activation: str) -> None:
    weight_EI, bias_E = draw(rows, features), draw(rows)
    torch.cuda.synchronize()
    for tokens in (1, 7, 16, 25, 64):
        x_TI = draw(tokens, features)
        for bias in (None, bias_E):
            poison(tokens, rows // 2)
            assert_near(
                gated_linear(x_TI, weight_EI, activation=activation, bias_E=bias),
                reference.gated_linear(x_TI, weight_EI, activation, bias),
            )


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "features"), [(4096, 4096), (3072, 2048)])
def test_a_batch_invariant_token_knows_nothing_of_others(rows: int, features: int) -> None:
    x_TI, weight_OI = draw(200, features), draw(rows, features)
    torch.cuda.synchronize()
    all_TO = linear(x_TI, weight_OI, batch_invariant=True)
    assert_near(all_TO, reference.linear(x_TI, weight_OI, None))
    for rows_ in (slice(0, 1), slice(37, 38), slice(5, 90), slice(64, 72)):
        assert torch.equal(linear(x_TI[rows_], weight_OI, batch_invariant=True), all_TO[rows_])


@pytest.mark.gpu
def test_many_tokens_and_odd_sizes_go_to_cublas() -> None:
    for tokens, rows, features in ((65, 128, 64), (300, 96, 128), (2, 50, 64), (3, 64, 30)):
        x_TI, weight_OI = draw(tokens, features), draw(rows, features)
        torch.cuda.synchronize()
        bias_O, residual_TO = draw(rows), draw(tokens, rows)
        assert_near(linear(x_TI, weight_OI), reference.linear(x_TI, weight_OI, None))
        assert_near(
            gated_linear(x_TI, weight_OI, activation="silu", bias_E=bias_O),
            reference.gated_linear(x_TI, weight_OI, "silu", bias_O),
            norm=1e-2,
        )
        expected_TO = reference.linear_add_(residual_TO.clone(), x_TI, weight_OI, bias_O)
        assert_near(linear_add_(residual_TO, x_TI, weight_OI, bias_O), expected_TO, norm=1e-2)
        for activation in reference.PLAIN_ACTIVATIONS:
            assert_near(
                activated_linear(x_TI, weight_OI, bias_O, activation=activation),
                reference.activated_linear(x_TI, weight_OI, activation, bias_O),
                norm=1e-2,
            )
    with pytest.raises(ValueError, match="batch-invariantly"):
        linear(draw(2, 64), draw(50, 64), batch_invariant=True)


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", ["silu", "add"])
@pytest.mark.parametrize(
    ("tokens", "kernel"), [(128, linear_mid.launch), (2048, linear_tall.launch)]
)
def test_products_of_more_tokens_are_other_kernels(
    tokens: int, kernel: Launch, epilogue: str
) -> None:
    rows = torch.cuda.get_device_properties(0).multi_processor_count // 2 * 256
    x_TI, weight_OI = draw(tokens, 256), draw(rows, 256)
    if epilogue == "add":
        residual_TO = draw(tokens, rows)
        expected_TO = residual_TO.clone()
        kernel(expected_TO, x_TI, weight_OI, None, "add")
        found_TO = linear_add_(residual_TO, x_TI, weight_OI)
    else:
        expected_TO = product(kernel, x_TI, weight_OI, None, epilogue)
        found_TO = gated_linear(x_TI, weight_OI, activation=epilogue)
    assert torch.equal(found_TO, expected_TO)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", list(reference.PLAIN_ACTIVATIONS))
def test_activations_of_many_tokens_are_the_products_own(activation: str) -> None:
    x_TI, weight_OI, bias_O = draw(4096, 256), draw(4096, 256), draw(4096)
    assert torch.equal(
        activated_linear(x_TI, weight_OI, bias_O, activation=activation),
        product(linear_tall.launch, x_TI, weight_OI, bias_O, f"plain_{activation}"),
    )


@pytest.mark.gpu
def test_kernels_in_a_graph_pass_their_results_on() -> None:
    weights = [draw(2048, 2048) for _ in range(6)]
    x_TI = draw(4, 2048)
    torch.cuda.synchronize()

    def chain() -> Tensor:
        hidden_TI = x_TI
        for weight_OI in weights:
            hidden_TI = linear(hidden_TI, weight_OI)
            linear_add_(hidden_TI, hidden_TI.clone(), weight_OI)
            hidden_TI = hidden_TI / hidden_TI.float().square().mean().sqrt().bfloat16()
        return hidden_TI

    expected_TI = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TI = chain()
    for _ in range(20):
        out_TI.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out_TI, expected_TI)
