from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo_kernels.moe import experts, reference, route

SHAPES = [  # (experts, chosen, hidden, intermediate): ragged ones, and models' own made smaller
    (1, 1, 16, 8),
    (5, 2, 48, 40),
    (8, 2, 208, 136),
    (128, 8, 256, 96),
    (8, 2, 1024, 768),
    (32, 4, 2880, 360),
]


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> Tensor:
    return torch.randn(shape, device=device).mul_(shape[-1] ** -0.25).to(dtype)


def layer_of(
    num_experts: int, hidden: int, intermediate: int, **options: Any
) -> tuple[Tensor, Tensor]:
    return (
        draw(num_experts, 2 * intermediate, hidden, **options),
        draw(num_experts, hidden, intermediate, **options),
    )


def choices_of(tokens: int, num_experts: int, chosen: int, device: str) -> tuple[Tensor, Tensor]:
    scores_TX = torch.randn(tokens, num_experts, device=device)
    ids_TK = scores_TX.topk(chosen).indices.int()
    return ids_TK, torch.rand(tokens, chosen, device=device)


def ranks_of(scores_X: Tensor, score: str, bias_X: Tensor | None) -> Tensor:
    """What experts are chosen by, in float64."""
    values_X = scores_X.double()
    if score != "softmax_after":
        values_X = values_X.softmax(dim=-1) if score == "softmax" else values_X.sigmoid()
    return values_X if bias_X is None else values_X + bias_X


def is_nearly_best(ids_K: Tensor, ranks_X: Tensor, groups: tuple[int, int] | None) -> bool:
    """Whether no expert, nor group by its best two, would be before one chosen by over 1e-6."""
    num_groups, num_chosen = groups or (1, 1)
    ranks_GX, best_first_K = (
        ranks_X.cpu().unflatten(0, (num_groups, -1)),
        ranks_X.cpu()[ids_K.cpu()],
    )
    sum_G = ranks_GX.topk(2, dim=-1).values.sum(dim=-1)
    if (best_first_K.diff() > 1e-6).any():
        return False
    for chosen in combinations(range(num_groups), num_chosen):
        is_in_G = torch.zeros(num_groups, dtype=torch.bool)
        is_in_G[list(chosen)] = True
        left_X = ranks_GX.where(is_in_G[:, None], -torch.inf).flatten()
        is_within = bool(left_X[ids_K.cpu()].isfinite().all())
        left_X[ids_K.cpu()] = -torch.inf
        best_out = sum_G.where(~is_in_G, -torch.inf).max()
        if (
            is_within
            and best_out <= sum_G[is_in_G].min() + 1e-6
            and left_X.max() <= (best_first_K[-1] + 1e-6)
        ):
            return True
    return False


def assert_near(out: Tensor, expected: Tensor) -> None:
    error = out.float() - expected.float()
    exact = expected.dtype is torch.float32
    assert error.norm() <= (1e-4 if exact else 8e-3) * expected.float().norm()
    assert error.abs().max() <= (1e-3 if exact else 2e-2) * expected.float().abs().max()


def test_a_token_gets_the_weighted_sum_of_the_experts_it_chose() -> None:
    gate_up_XED, down_XDI = layer_of(4, 6, 5, dtype=torch.float32, device="cpu")
    x_TD = torch.randn(3, 6)
    ids_TK = torch.tensor([[2, 0], [3, -1], [-1, -1]], dtype=torch.int32)
    weights_TK = torch.rand(3, 2)

    def expert(number: int, x_D: Tensor) -> Tensor:
        gate_I, up_I = (gate_up_XED[number] @ x_D).chunk(2)
        return down_XDI[number] @ (torch.nn.functional.silu(gate_I) * up_I)

    expected_TD = torch.zeros(3, 6)
    expected_TD[0] = weights_TK[0, 0] * expert(2, x_TD[0]) + weights_TK[0, 1] * expert(0, x_TD[0])
    expected_TD[1] = weights_TK[1, 0] * expert(3, x_TD[1])
    out_TD = experts(x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK, activation="silu")
    torch.testing.assert_close(out_TD, expected_TD)
    residual_TD = torch.randn(3, 6)
    before_TD = residual_TD.clone()
    arguments = (x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK)
    assert experts(*arguments, activation="silu", residual_TD=residual_TD) is residual_TD
    torch.testing.assert_close(residual_TD, before_TD + expected_TD)


def test_clamped_swiglu_bounds_gate_and_up() -> None:
    gate, up = torch.tensor([9.0, -9.0]), torch.tensor([-8.0, 8.0])
    expected = [
        7 * torch.tensor(7 * 1.702).sigmoid() * -6,
        -9 * torch.tensor(-15.318).sigmoid() * 8,
    ]
    torch.testing.assert_close(reference.ACTIVATIONS["swiglu_oai"](gate, up), torch.stack(expected))


def test_scores_become_weights_in_three_ways() -> None:
    scores_TX = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    ids_TK, weights_TK = route(scores_TX, 2, renormalize=False, score="softmax")
    assert ids_TK.tolist() == [[1, 2]]
    assert ids_TK.dtype is torch.int32
    torch.testing.assert_close(weights_TK, scores_TX.softmax(-1)[:, [1, 2]])
    after_TK = torch.tensor([[3.0, 2.0]]).softmax(-1)
    for score, renormalize in (("softmax", True), ("softmax_after", False)):
        weights_TK = route(scores_TX, 2, renormalize=renormalize, score=score)[1]
        torch.testing.assert_close(weights_TK, after_TK)
    weights_TK = route(scores_TX, 2, renormalize=False, score="sigmoid", scale=2.5)[1]
    torch.testing.assert_close(weights_TK, 2.5 * torch.tensor([[3.0, 2.0]]).sigmoid())


def test_of_equal_experts_the_lower_id_comes_first() -> None:
    ids_TK, _ = route(torch.zeros(2, 7), 3, renormalize=True, score="softmax")
    assert ids_TK.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_bias_counts_for_the_choice_and_not_for_the_weight() -> None:
    scores_TX, bias_X = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([5.0, 0.0, 0.0])
    ids_TK, weights_TK = route(scores_TX, 1, renormalize=False, score="sigmoid", bias_X=bias_X)
    assert ids_TK.tolist() == [[0]]
    torch.testing.assert_close(weights_TK, torch.tensor([[0.5]]))


def test_groups_rank_by_their_best_expert_or_with_a_bias_by_their_best_two() -> None:
    scores_TX = torch.tensor([[4.0, -9.0, -9.0, 2.0, 3.0, -9.0]])
    options: dict[str, Any] = {"renormalize": False, "score": "sigmoid", "groups": (2, 1)}
    assert route(scores_TX, 2, **options)[0].tolist() == [[0, 1]]
    assert route(scores_TX, 2, bias_X=torch.zeros(6), **options)[0].tolist() == [[4, 3]]


def test_only_a_choice_between_near_ties_is_nearly_best() -> None:
    ranks_X = torch.tensor([0.5, 0.4, 0.7, 0.2 + 1e-7, 0.1, 0.1, 0.3, 0.3 + 1e-7]).double()
    for ids, groups, is_near in (
        ([2, 0, 1], None, True),
        ([2, 0, 7], None, False),
        ([0, 2, 1], None, False),  # in another order
        ([2, 0, 1, 6], None, True),
        ([2, 0], (4, 1), False),  # experts of two groups
        ([0, 1], (4, 1), True),  # the first two groups' sums are near
        ([2, 3], (4, 1), True),
        ([7, 6], (4, 1), False),
    ):
        assert is_nearly_best(torch.tensor(ids), ranks_X, groups) == is_near, (ids, groups)


def test_what_does_not_fit_is_refused() -> None:
    scores_TX = torch.zeros(2, 6)
    options: dict[str, Any] = {"renormalize": False, "score": "softmax"}
    with pytest.raises(ValueError, match="k=7"):
        route(scores_TX, 7, **options)
    with pytest.raises(ValueError, match="score='relu'"):
        route(scores_TX, 2, renormalize=False, score="relu")
    with pytest.raises(ValueError, match=r"groups=\(4, 1\) do not divide 6"):
        route(scores_TX, 1, groups=(4, 1), **options)
    with pytest.raises(ValueError, match="so that k=3 remain"):
        route(scores_TX, 3, groups=(3, 1), **options)
    with pytest.raises(ValueError, match=r"the bias, \[5\]"):
        route(scores_TX, 1, bias_X=torch.zeros(5), **options)
    gate_up_XED, down_XDI = torch.zeros(3, 8, 6), torch.zeros(3, 6, 4)
    x_TD, ids_TK, weights_TK = torch.zeros(2, 6), torch.zeros(2, 1).int(), torch.zeros(2, 1)
    arguments = (x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK)
    with pytest.raises(ValueError, match="'relu' is not known"):
        experts(*arguments, activation="relu")
    for place, name in enumerate(("x", "gate_up", "down", "ids", "weights")):
        wrong = [*arguments[:place], arguments[place].double(), *arguments[place + 1 :]]
        with pytest.raises(ValueError, match=f"experts: .*{name if place else ''}.*torch.float64"):
            experts(*wrong, activation="silu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bias_XE, \[3, 7\]"):
        experts(*arguments, activation="silu", bias_XE=torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"residual, \[1, 6\]"):
        experts(*arguments, activation="silu", residual_TD=torch.zeros(1, 6))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", ["softmax", "sigmoid", "softmax_after"])
def test_the_routing_kernel_chooses_as_the_reference(score: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    num_tokens = num_near_ties = 0
    for tokens, num_experts, k, groups in (
        (1, 8, 2, None),
        (33, 128, 8, None),
        (7, 60, 4, None),
        (50, 256, 8, (8, 4)),
        (9, 512, 32, None),
        (5, 3, 3, None),
    ):
        # Whole numbers: many ties, and both sides see the same values.
        scores_TX = torch.randint(-40, 40, (tokens, num_experts + 8), generator=random).cuda()
        scores_TX = (scores_TX.to(dtype) / 8)[:, :num_experts]
        bias_X = torch.randint(-3, 3, (num_experts,), generator=random).cuda() / num_experts
        for bias, renormalize in ((None, False), (bias_X, True)):
            arguments = (scores_TX, k, renormalize, score, bias, groups, 1.5)
            expected_ids_TK, expected_TK = reference.route(*arguments)
            ids_TK, weights_TK = route(
                scores_TX,
                k,
                renormalize=renormalize,
                score=score,
                bias_X=bias,
                groups=groups,
                scale=1.5,
            )
            same_T = (ids_TK == expected_ids_TK).all(dim=-1)
            torch.testing.assert_close(
                weights_TK[same_T], expected_TK[same_T], rtol=1e-4, atol=1e-6
            )
            assert all(len(set(row)) == k for row in ids_TK.tolist())
            assert same_T.all() or (bias is not None and score != "softmax_after")
            for scores_X, ids_K in zip(scores_TX[~same_T], ids_TK[~same_T], strict=True):
                assert is_nearly_best(ids_K, ranks_of(scores_X, score, bias), groups)
            num_tokens += tokens
            num_near_ties += int((~same_T).sum())
    assert num_near_ties <= num_tokens // 50


@pytest.mark.gpu
def test_scores_that_are_no_numbers_still_choose_experts() -> None:
    scores_TX = torch.full((3, 8), torch.nan, device="cuda")
    ids_TK, _ = route(scores_TX, 2, renormalize=True, score="softmax")
    assert ids_TK.tolist() == [[0, 1]] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_compute_the_reference(
    shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    num_experts, chosen, hidden, intermediate = shape
    gate_up_XED, down_XDI = layer_of(num_experts, hidden, intermediate, dtype=dtype)
    bias_XE = draw(num_experts, 2 * intermediate, dtype=dtype)
    bias_XD = draw(num_experts, hidden, dtype=dtype)
    activations = list(reference.ACTIVATIONS)
    for turn, tokens in enumerate((1, 7, 16, 30, 100, 333, 1100)):
        x_TD = draw(tokens, hidden, dtype=dtype)
        ids_TK, weights_TK = choices_of(tokens, num_experts, chosen, "cuda")
        ids_TK[tokens // 2, 0] = -1
        activation = activations[turn % len(activations)]
        biases = (bias_XE, bias_XD) if turn % 2 else (None, None)
        arguments = (x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK)
        expected_TD = reference.experts(*arguments, activation, *biases, None)
        poison = torch.full((60_000_000,), torch.nan, dtype=dtype, device="cuda")
        del poison  # the allocator hands its memory, poisoned, to the call
        out_TD = experts(*arguments, activation=activation, bias_XE=biases[0], bias_XD=biases[1])
        assert_near(out_TD, expected_TD)
        residual_TD = draw(tokens, hidden, dtype=dtype)
        expected_TD = expected_TD.float() + residual_TD.float()
        experts(
            *arguments,
            activation=activation,
            bias_XE=biases[0],
            bias_XD=biases[1],
            residual_TD=residual_TD,
        )
        assert_near(residual_TD, expected_TD.to(dtype))


@pytest.mark.gpu
def test_all_tokens_may_choose_one_expert_or_none() -> None:
    gate_up_XED, down_XDI = layer_of(16, 256, 128)
    for tokens in (1, 9, 700):
        x_TD, weights_TK = draw(tokens, 256), torch.rand(tokens, 1, device="cuda")
        for expert in (0, 15, -1):
            ids_TK = torch.full((tokens, 1), expert, dtype=torch.int32, device="cuda")
            arguments = (x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK)
            expected_TD = reference.experts(*arguments, "silu", None, None, None)
            assert_near(experts(*arguments, activation="silu"), expected_TD)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_token_gets_the_same_bits_whatever_stands_beside_it(dtype: torch.dtype) -> None:
    weights = layer_of(8, 512, 328, dtype=dtype)
    x_TD = draw(900, 512, dtype=dtype)
    choices = choices_of(900, 8, 2, "cuda")
    all_TD = experts(x_TD, *weights, *choices, activation="silu")
    for tokens in (1, 5, 20, 60, 120, 300):
        of_few = (choice_TK[-tokens:] for choice_TK in choices)
        few_TD = experts(x_TD[-tokens:], *weights, *of_few, activation="silu")
        assert torch.equal(few_TD, all_TD[-tokens:])


@pytest.mark.gpu
def test_a_recorded_graph_follows_new_choices_and_gives_the_same_bits_each_time() -> None:
    gate_up_XED, down_XDI = layer_of(32, 512, 256)
    x_TD, scores_TX = draw(24, 512), torch.randn(24, 32, device="cuda")

    def run() -> Tensor:
        ids_TK, weights_TK = route(scores_TX, 4, renormalize=True, score="softmax")
        return experts(x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK, activation="silu")

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_TD = run()
    for _ in range(3):
        x_TD.normal_()
        scores_TX.normal_()
        out_TD.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        expected_TD = run()
        assert torch.equal(out_TD, expected_TD)
        ids_TK, weights_TK = reference.route(scores_TX, 4, True, "softmax", None, None, 1.0)
        arguments = (x_TD, gate_up_XED, down_XDI, ids_TK, weights_TK)
        assert_near(out_TD, reference.experts(*arguments, "silu", None, None, None))
