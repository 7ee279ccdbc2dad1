from __future__ import annotations

import pytest
import torch

from octavo_kernels.rotary import reference, rotary_

CASES = {
    "queries and keys beside values": ((5476, 32, 80), 40, 16 * 80),
    "pieces of four entries": ((7, 3, 72), 36, 4),
    "pieces of two": ((5, 4, 12), 6, 2),
    "an odd number of frequencies": ((3, 1, 70), 33, 0),
    "a start of odd alignment": ((65, 5, 16), 8, 4),
    "heads of odd alignment": ((9, 5, 17), 8, 0),
    "more frequencies than threads": ((2, 3, 603), 301, 3),
    "more heads than a block has": ((3, 1030, 8), 4, 8),
    "one token": ((1, 40, 128), 64, 0),
}
"""Of x its shape, how many pairs turn, and what lies on both sides of a token's heads."""


def angles_of(num_tokens: int, num_pairs: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Cosines and sines side by side, as models have them."""
    angles_TF = torch.rand(num_tokens, num_pairs, device="cuda") * 7
    table_T2F = torch.stack((angles_TF.cos(), angles_TF.sin()), dim=1).to(dtype)
    return [*table_T2F.unbind(1)]


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


def test_what_is_of_16_bits_is_rounded_once() -> None:
    x_THD, angles_TF = torch.randn(50, 3, 10).bfloat16(), torch.randn(50, 4)
    expected_THD = rotary_(x_THD.float(), angles_TF.cos(), angles_TF.sin()).bfloat16()
    assert torch.equal(rotary_(x_THD, angles_TF.cos(), angles_TF.sin()), expected_THD)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)],
)
def test_the_kernel_equals_the_reference(dtype: torch.dtype, tolerance: float, case: str) -> None:
    (num_tokens, num_heads, head_dim), num_pairs, beside = CASES[case]
    for angle_dtype in {torch.float32, dtype}:
        angles = angles_of(num_tokens, num_pairs, angle_dtype)
        size = num_heads * head_dim
        found = torch.randn(num_tokens, size + 2 * beside, device="cuda").to(dtype)
        expected = found.clone()
        for rotate, buffer in ((rotary_, found), (reference.rotary_, expected)):
            rotate(buffer[:, beside : beside + size].unflatten(1, (num_heads, head_dim)), *angles)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("plain", "turning"), [(128, 64), (3, 8)])
def test_the_ends_of_heads_and_a_single_key_are_turned_where_they_lie(
    plain: int, turning: int
) -> None:
    angles = angles_of(9, turning // 2, torch.bfloat16)
    found = torch.randn(9, 6, plain + turning, device="cuda").bfloat16()
    expected = found.clone()
    for rotate, buffer in ((rotary_, found), (reference.rotary_, expected)):
        rotate(buffer[:, :5, plain:], *angles)
        rotate(buffer[:, 5, plain:].unsqueeze(1), *angles)
    torch.testing.assert_close(found, expected, rtol=8e-3, atol=1e-6)


@pytest.mark.gpu
def test_no_tokens_and_no_frequencies_are_no_work() -> None:
    x_THD = torch.randn(4, 2, 8, device="cuda")
    before = x_THD.clone()
    rotary_(x_THD[:0], *angles_of(0, 4, torch.float32))
    rotary_(x_THD, *angles_of(4, 0, torch.float32))
    assert torch.equal(x_THD, before)


@pytest.mark.gpu
def test_a_captured_call_turns_what_lies_there_at_each_replay() -> None:
    x_THD, angles = torch.randn(33, 6, 128, device="cuda"), angles_of(33, 64, torch.float32)
    rotary_(x_THD, *angles)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rotary_(x_THD, *angles)
    for _ in range(3):
        x_THD.normal_()
        angles[0].uniform_(-1, 1)
        expected = reference.rotary_(x_THD.clone(), *angles)
        graph.replay()
        torch.testing.assert_close(x_THD, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.gpu
def test_the_kernel_refuses_what_it_cannot_do() -> None:
    x_THD, (cos_TF, sin_TF) = torch.randn(2, 3, 8, device="cuda"), angles_of(2, 4, torch.float32)
    with pytest.raises(ValueError, match=r"sin torch\.float16; x must be float32, float16 or"):
        rotary_(x_THD, cos_TF, sin_TF.half())
    with pytest.raises(ValueError, match=r"x, cos and sin have steps 1, 2 and 1; they must be 1"):
        rotary_(x_THD, cos_TF.repeat_interleave(2, dim=1)[:, ::2], sin_TF)
