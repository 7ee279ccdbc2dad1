"""What counts as equal, on distributions made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.testing.comparison import Comparison, compare
from octavo.testing.engine_run import Logprobs, SampledSequence, Tokens

SCORES = np.array([[0.0, 3.0, -3.0], [3.0, 0.0, -3.0], [0.0, -3.0, 3.0]], np.float32)
GREEDY = (1, 0, 2)
SPREAD = float(SCORES.std(axis=1).mean())


class Fixed:
    """Its distributions follow a prompt of one token, whatever the tokens."""

    name = "fixed"

    def __init__(self, scores: Logprobs) -> None:
        self.scores = scores

    def logprobs(self, sequences: Sequence[Tokens]) -> list[Logprobs]:
        return [self.scores for _ in sequences]


def drawn(tokens: Tokens, scores: Logprobs) -> SampledSequence:
    return SampledSequence(prompt=(7,), tokens=tokens, logprobs_NV=scores, num_cached_tokens=0)


def changed(row: int, token: int, value: float) -> Logprobs:
    scores = SCORES.copy()
    scores[row, token] += value
    return scores


def test_equal_distributions_and_choices_pass() -> None:
    comparison = compare([drawn(GREEDY, SCORES)], Fixed(SCORES))
    assert comparison.passed
    assert comparison.as_text() == "logits within 0.0e+00 of their spread"


@pytest.mark.parametrize(("part_of_spread", "passes"), [(0.9e-4, True), (1.1e-4, False)])
def test_a_logit_may_differ_by_a_ten_thousandth_of_the_spread(
    part_of_spread: float, passes: bool
) -> None:
    other = changed(2, 1, part_of_spread * SPREAD)
    comparison = compare([drawn(GREEDY, other)], Fixed(SCORES))
    assert comparison.passed == passes
    assert ("position 2: logits differ by 0.00011" in comparison.as_text()) != passes


def test_logits_that_are_no_number_differ() -> None:
    comparison = compare([drawn(GREEDY, changed(1, 1, np.nan))], Fixed(SCORES))
    assert not comparison.passed
    assert "position 1" in comparison.as_text()


def test_another_token_is_a_problem_even_where_logits_are_equal() -> None:
    comparison = compare([drawn((1, 1, 2), SCORES), drawn(GREEDY, SCORES)], Fixed(SCORES))
    assert not comparison.passed
    assert comparison.as_text() == (
        "1 of 2 sequences differ; sequence 0, prompt of 1, position 1: token 1 instead of 0, "
        "which leads by 3"
    )


def test_random_tokens_are_not_held_against_the_best() -> None:
    assert compare([drawn((2, 2, 0), SCORES)], Fixed(SCORES), greedy=False).passed


@pytest.mark.parametrize(("lead", "is_tie"), [(0.8e-5, True), (2e-5, False)])
def test_either_token_will_do_at_a_tie_which_is_told(lead: float, is_tie: bool) -> None:
    tied = changed(0, 0, 3.0 - lead)
    comparison = compare([drawn((0, 0, 2), tied)], Fixed(tied))
    assert comparison.passed == is_tie
    text = "position 0: token 0 instead of 1, which leads by"
    assert (f"tie at {text}" in comparison.as_text()) == is_tie
    assert text in comparison.as_text()


def test_comparing_nothing_proves_nothing() -> None:
    assert not Comparison().passed
