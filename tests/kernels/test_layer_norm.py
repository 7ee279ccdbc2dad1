from __future__ import annotations

import pytest
import torch

from octavo_kernels.layer_norm import layer_norm, reference


def test_rows_have_a_mean_of_zero_and_a_variance_of_one_before_weight_and_bias() -> None:
    x_TD = torch.randn(5, 64) * 30 + 7
    normal_TD = layer_norm(x_TD, None, None, 1e-6)
    torch.testing.assert_close(normal_TD.mean(-1), torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(normal_TD.var(-1, correction=0), torch.ones(5))
    weight_D, bias_D = torch.randn(2, 64).unbind(0)
    torch.testing.assert_close(
        layer_norm(x_TD, weight_D, bias_D, 1e-6), normal_TD * weight_D + bias_D
    )


def test_bfloat16_is_normalised_in_float32_and_rounded_once() -> None:
    x_TD, parameters_2D = torch.randn(3, 512).bfloat16(), torch.randn(2, 512).bfloat16()
    found_TD = layer_norm(x_TD, *parameters_2D.unbind(0), 1e-5)
    exact_TD = layer_norm(x_TD.double(), *parameters_2D.double().unbind(0), 1e-5)
    assert found_TD.dtype == torch.bfloat16
    torch.testing.assert_close(found_TD.double(), exact_TD, rtol=2**-8, atol=1e-6)


def test_parameters_of_another_size_or_type_are_refused_by_name() -> None:
    x_TD, good_D = torch.randn(2, 8), torch.ones(8)
    with pytest.raises(ValueError, match=r"the weight, \[7\]"):
        layer_norm(x_TD, torch.ones(7), good_D, 1e-5)
    with pytest.raises(ValueError, match=r"the bias, \[8\] of torch.float16"):
        layer_norm(x_TD, good_D, good_D.half(), 1e-5)


SHAPES = [  # (rows, size, entries between rows)
    (1, 768, 0),
    (3, 1280, 8),
    (7, 33, 0),  # an element at a time
    (64, 1280, 3),  # rows begin anywhere
    (300, 64, 0),  # one warp
    (2000, 1280, 0),
    (2000, 1152, 16),
    (300, 5120, 0),
    (270, 8192, 0),
    (2, 40000, 0),  # longer than a block's registers
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)],
)
@pytest.mark.parametrize(("num_tokens", "size", "padding"), SHAPES)
def test_the_kernel_equals_the_reference(
    num_tokens: int, size: int, padding: int, dtype: torch.dtype, tolerance: float
) -> None:
    x_TD = torch.randn(num_tokens, size + padding, device="cuda").mul_(3).add_(2).to(dtype)
    x_TD = x_TD[:, :size]
    weight_D, bias_D = torch.randn(2, size, device="cuda").to(dtype).unbind(0)
    for weight, bias in ((weight_D, bias_D), (weight_D, None), (None, bias_D), (None, None)):
        torch.full((num_tokens, size), float("nan"), dtype=dtype, device="cuda")  # poison
        found_TD = layer_norm(x_TD, weight, bias, 1e-5)
        expected_TD = reference.layer_norm(x_TD, weight, bias, 1e-5)
        torch.testing.assert_close(found_TD, expected_TD, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_rows_far_from_zero_keep_their_variance() -> None:
    x_TD = torch.randn(300, 1280, device="cuda") + 1000
    exact_TD = reference.layer_norm(x_TD.double(), None, None, 1e-5)
    found_TD = layer_norm(x_TD, None, None, 1e-5)
    torch.testing.assert_close(found_TD.double(), exact_TD, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_result_in_any_company(dtype: torch.dtype) -> None:
    x_TD = torch.randn(3000, 1280, device="cuda").to(dtype)
    parameters = torch.randn(2, 1280, device="cuda").to(dtype).unbind(0)
    all_TD = layer_norm(x_TD, *parameters, 1e-5)
    for some in (slice(0, 1), slice(17, 200), slice(100, 2000)):
        assert torch.equal(layer_norm(x_TD[some], *parameters, 1e-5), all_TD[some])


@pytest.mark.gpu
def test_no_rows_more_axes_and_transposed_rows_are_taken() -> None:
    x_THD = torch.randn(3, 5, 64, device="cuda")
    weight_D, bias_D = torch.randn(2, 64, device="cuda").unbind(0)
    assert layer_norm(x_THD[:0], weight_D, bias_D, 1e-5).shape == (0, 5, 64)
    for x in (x_THD, x_THD[:, :2], x_THD[0].T.contiguous().T, x_THD[0, 0]):
        expected = reference.layer_norm(x, weight_D, bias_D, 1e-5)
        torch.testing.assert_close(layer_norm(x, weight_D, bias_D, 1e-5), expected)


@pytest.mark.gpu
def test_rows_are_normalised_after_what_writes_them_in_a_graph() -> None:
    first_TD = torch.randn(500, 1280, device="cuda").bfloat16()
    weight_D, bias_D = torch.randn(2, 1280, device="cuda").bfloat16().unbind(0)

    def chain() -> torch.Tensor:
        x_TD = first_TD
        for _ in range(8):
            x_TD = layer_norm(x_TD, weight_D, bias_D, 1e-5)
        return x_TD

    expected_TD = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TD = chain()
    for _ in range(20):
        out_TD.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out_TD, expected_TD)
