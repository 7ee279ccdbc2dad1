from __future__ import annotations

import pytest
import torch

from octavo_kernels.rms_norm import add_rms_norm, reference, rms_norm


def test_rows_have_a_root_mean_square_of_one_before_the_weight() -> None:
    x_TD = torch.randn(5, 64) * 30
    out_TD = rms_norm(x_TD, torch.full((64,), 2.0), 1e-6)
    torch.testing.assert_close(out_TD.square().mean(-1).sqrt(), torch.full((5,), 2.0))
    torch.testing.assert_close(out_TD / out_TD[:, :1], x_TD / x_TD[:, :1], rtol=1e-3, atol=1e-3)


def test_bfloat16_is_normalised_in_float32() -> None:
    x_TD = torch.randn(3, 512).bfloat16()
    out_TD = rms_norm(x_TD, torch.ones(512, dtype=torch.bfloat16), 1e-5)
    assert out_TD.dtype == torch.bfloat16
    exact_TD = torch.nn.functional.rms_norm(x_TD.double(), (512,), eps=1e-5)
    torch.testing.assert_close(out_TD.double(), exact_TD, rtol=2**-8, atol=0)


def test_the_input_is_left_as_it_was() -> None:
    x_TD = torch.randn(2, 8)
    before = x_TD.clone()
    rms_norm(x_TD, torch.rand(8), 1e-5)
    assert torch.equal(x_TD, before)


def test_a_weight_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight of shape \[7\]"):
        rms_norm(torch.randn(2, 8), torch.ones(7), 1e-5)


def test_a_sum_goes_to_the_residual_and_its_norm_is_returned() -> None:
    x_TD, residual_TD = torch.randn(2, 4, 16).bfloat16().unbind(0)
    weight_D, total_TD = torch.rand(16).bfloat16(), x_TD + residual_TD
    out_TD = add_rms_norm(x_TD, residual_TD, weight_D, 1e-5)
    assert torch.equal(residual_TD, total_TD)
    assert torch.equal(out_TD, rms_norm(total_TD, weight_D, 1e-5))


def test_a_residual_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"residual, \[2, 4\]"):
        add_rms_norm(torch.randn(2, 8), torch.randn(2, 4), torch.ones(8), 1e-5)


SIZES = [(1, 4096), (5, 2048), (300, 4096), (300, 1024), (9, 8200), (3, 127), (2, 20000), (600, 64)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)],
)
def test_the_kernel_equals_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    for num_tokens, size in SIZES:
        for padding in (0, 8, 3):
            x_TD = torch.randn(num_tokens, size + padding, device="cuda").mul_(3).to(dtype)
            x_TD = x_TD[:, :size]
            weight_D = torch.randn(size, device="cuda").to(dtype)
            torch.full((num_tokens, size), float("nan"), dtype=dtype, device="cuda")  # poison
            found = rms_norm(x_TD, weight_D, 1e-5)
            expected = reference.rms_norm(x_TD, weight_D, 1e-5)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
            residual_TD = torch.randn_like(x_TD)
            expected_residual_TD = residual_TD.clone()
            found = add_rms_norm(x_TD, residual_TD, weight_D, 1e-5)
            expected = reference.add_rms_norm(x_TD, expected_residual_TD, weight_D, 1e-5)
            assert torch.equal(residual_TD, expected_residual_TD)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_no_rows_and_more_axes_are_taken() -> None:
    x_THD, weight_D = torch.randn(3, 5, 64, device="cuda"), torch.rand(64, device="cuda")
    assert rms_norm(x_THD[:0], weight_D, 1e-5).shape == (0, 5, 64)
    expected = reference.rms_norm(x_THD[:, :2], weight_D, 1e-5)
    torch.testing.assert_close(rms_norm(x_THD[:, :2], weight_D, 1e-5), expected)


@pytest.mark.gpu
def test_dtypes_that_differ_are_refused_on_the_device() -> None:
    with pytest.raises(ValueError, match=r"x is torch.bfloat16 and weight torch.float32"):
        rms_norm(torch.ones(2, 8, device="cuda").bfloat16(), torch.ones(8, device="cuda"), 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [256, 768, 1024, 2880, 4096, 8192, 12288])
def test_a_row_has_the_same_bits_among_few_and_many(size: int) -> None:
    x_TD = torch.randn(600, size, device="cuda").bfloat16()
    weight_D = torch.rand(size, device="cuda").bfloat16()
    many_TD = rms_norm(x_TD, weight_D, 1e-5)
    for rows in (slice(0, 1), slice(100, 300)):
        assert torch.equal(rms_norm(x_TD[rows], weight_D, 1e-5), many_TD[rows])
        residual_TD = torch.zeros_like(x_TD[rows])
        assert torch.equal(add_rms_norm(x_TD[rows], residual_TD, weight_D, 1e-5), many_TD[rows])
