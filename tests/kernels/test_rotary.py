from __future__ import annotations

import pytest
import torch

from octavo_kernels.rotary import rotary_


def test_pairs_turn_by_their_angle_as_complex_numbers_do() -> None:
    x_THD, angles_TF = torch.randn(5, 3, 8), torch.randn(5, 4)
    pairs = torch.complex(x_THD[..., :4], x_THD[..., 4:])
    turned = pairs * torch.polar(torch.ones(5, 4), angles_TF).unsqueeze(1)
    found = rotary_(x_THD, angles_TF.cos(), angles_TF.sin())
    torch.testing.assert_close(found, torch.cat((turned.real, turned.imag), dim=-1))


def test_entries_past_the_rotated_ones_stay() -> None:
    x_THD, angles_TF = torch.randn(2, 3, 10), torch.randn(2, 4)
    before = x_THD.clone()
    rotary_(x_THD, angles_TF.cos(), angles_TF.sin())
    assert torch.equal(x_THD[..., 8:], before[..., 8:])
    assert not torch.equal(x_THD[..., :8], before[..., :8])


def test_it_works_in_place_on_a_slice_of_a_larger_tensor() -> None:
    qkv_THD, angles_TF = torch.randn(4, 6, 8), torch.randn(4, 4)
    expected = rotary_(qkv_THD[:, :4].clone(), angles_TF.cos(), angles_TF.sin())
    values = qkv_THD[:, 4:].clone()
    rotary_(qkv_THD[:, :4], angles_TF.cos(), angles_TF.sin())
    assert torch.equal(qkv_THD[:, :4], expected)
    assert torch.equal(qkv_THD[:, 4:], values)


@pytest.mark.parametrize(
    ("tokens", "frequencies", "message"),
    [(3, 4, "one row for each of the 2 tokens"), (2, 5, "5 frequencies need 10 entries")],
)
def test_angles_that_do_not_fit_are_refused(tokens: int, frequencies: int, message: str) -> None:
    angles_TF = torch.zeros(tokens, frequencies)
    with pytest.raises(ValueError, match=message):
        rotary_(torch.randn(2, 3, 8), angles_TF.cos(), angles_TF.sin())
