from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from octavo_kernels.gated_activation import (
    PLAIN_ACTIVATIONS,
    gated_activation,
    plain_activation,
    quick_gelu,
    reference,
)


def test_the_first_half_gates_the_second() -> None:
    gate, up = torch.randn(2, 3, 5).unbind(0)
    x = torch.cat((gate, up), dim=-1)
    torch.testing.assert_close(gated_activation(x, "silu"), gate / (1 + torch.exp(-gate)) * up)
    torch.testing.assert_close(gated_activation(x, "gelu"), F.gelu(gate) * up)
    tanh = F.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(gated_activation(x, "gelu_tanh"), tanh)


def test_the_input_is_left_as_it_was() -> None:
    x = torch.randn(3, 8)
    before = x.clone()
    gated_activation(x, "silu")
    assert torch.equal(x, before)


def test_an_odd_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="must be even"):
        gated_activation(torch.randn(2, 7), "silu")


def test_activations_without_a_gate_go_by_name() -> None:
    x = torch.randn(2, 3, 8)
    expected = [reference.quick_gelu(x), F.gelu(x), F.gelu(x, approximate="tanh")]
    for activation, each in zip(PLAIN_ACTIVATIONS, expected, strict=True):
        assert torch.equal(plain_activation(x, activation), each)
    with pytest.raises(
        ValueError, match=r"'silu' is not known; known: quick_gelu, gelu, gelu_tanh"
    ):
        plain_activation(x, "silu")


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'relu' is not known; known: silu, gelu, gelu_tanh"):
        gated_activation(torch.randn(2, 8), "relu")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)],
)
def test_the_kernel_equals_the_reference(
    dtype: torch.dtype, tolerance: float, activation: str
) -> None:
    for num_tokens, size, padding in [(1, 8, 0), (3, 14336, 0), (7, 33, 0), (65, 1001, 5)]:
        x = torch.randn(num_tokens, 2 * size + padding, device="cuda").mul_(4).to(dtype)
        x = x[:, : 2 * size]
        torch.full((num_tokens, size), float("nan"), dtype=dtype, device="cuda")  # freed: poison
        found = gated_activation(x, activation)
        expected = reference.gated_activation(x, activation)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert gated_activation(x[:0], activation).shape == (0, 1001)


@pytest.mark.gpu
def test_more_axes_and_extreme_gates_are_taken() -> None:
    x = torch.randn(2, 3, 64, device="cuda")
    x[0, 0, :4] = torch.tensor([-1e4, -90.0, 90.0, 1e4], device="cuda")
    torch.testing.assert_close(gated_activation(x, "silu"), reference.gated_activation(x, "silu"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)],
)
def test_quick_gelu_is_one_rounding_of_its_definition(dtype: torch.dtype, tolerance: float) -> None:
    for shape in [(1, 8), (2, 3, 5120), (7, 33), (65, 1001)]:
        x = torch.randn(shape, device="cuda").mul_(4).to(dtype)
        x.view(-1)[:4] = torch.tensor([-1e4, -50.0, 50.0, 1e4], device="cuda")
        torch.full_like(x, float("nan"))  # freed: poison
        expected = reference.quick_gelu(x.float()).to(dtype)
        torch.testing.assert_close(quick_gelu(x), expected, rtol=tolerance, atol=tolerance)
    assert quick_gelu(x[:0]).shape == (0, 1001)
