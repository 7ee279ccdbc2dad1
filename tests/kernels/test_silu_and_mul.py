from __future__ import annotations

import pytest
import torch

from octavo_kernels.silu_and_mul import silu_and_mul


def test_the_first_half_gates_the_second() -> None:
    gate, up = torch.randn(2, 3, 5).unbind(0)
    found = silu_and_mul(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(found, gate / (1 + torch.exp(-gate)) * up)


def test_the_input_is_left_as_it_was() -> None:
    x = torch.randn(3, 8)
    before = x.clone()
    silu_and_mul(x)
    assert torch.equal(x, before)


def test_an_odd_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="must be even"):
        silu_and_mul(torch.randn(2, 7))
