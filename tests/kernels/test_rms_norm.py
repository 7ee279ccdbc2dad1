from __future__ import annotations

import pytest
import torch

from octavo_kernels.rms_norm import rms_norm


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
