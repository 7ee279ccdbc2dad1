"""Many draws from one row of logits against the distribution in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from octavo.messages import TokenSampling
from sampling_reference import Bench, Row, distribution

NUM_ROWS, NUM_STEPS = 200, 100
NUM_DRAWS = NUM_ROWS * NUM_STEPS
VOCAB = 40
LOGITS = np.random.default_rng(5).normal(0.0, 2.0, VOCAB).astype(np.float32)

MECHANISMS: dict[str, dict[str, Any]] = {
    "plain softmax": {},
    "low temperature": {"temperature": 0.5},
    "high temperature": {"temperature": 2.5},
    "top_k": {"temperature": 1.5, "top_k": 7},
    "top_p": {"temperature": 1.5, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.1},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": 0.6},
    "repetition": {"repetition_penalty": 1.5},
    "negative penalties": {
        "presence_penalty": -0.5,
        "frequency_penalty": -0.3,
        "repetition_penalty": 0.8,
    },
    "logit_bias": {"logit_bias": {3: 4.0, 5: -2.0, 0: 1.5}},
    "allowed_token_ids": {"allowed_token_ids": (1, 2, 3, 33, 39)},
    "all together": {
        "temperature": 1.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
        "logit_bias": {7: 3.0},
    },
}


def make_row(**given: Any) -> Row:
    sampling = TokenSampling(seed=0, max_tokens=10, **given)
    return Row(sampling, prompt=(9, 4, 30, 4), output=(13, 5, 13, 4, 13))


def draw_tokens(row: Row, vary: str) -> NDArray[np.int64]:
    """NUM_DRAWS tokens of neighbouring seeds or of consecutive positions."""
    bench = Bench([row] * NUM_ROWS, VOCAB)
    tokens = []
    for first in range(0, NUM_DRAWS, NUM_ROWS):
        numbers = torch.arange(first, first + NUM_ROWS, dtype=torch.int32)
        if vary == "seed":
            bench.state.seed_S2[:NUM_ROWS, 0] = numbers
        else:
            bench.state.num_tokens_S[:NUM_ROWS] = numbers + 1
        tokens.append(
            bench.sample(torch.tensor(LOGITS).repeat(NUM_ROWS, 1)).tokens_RK[:, 0].numpy()
        )
    return np.concatenate(tokens)


def count_draws(**given: Any) -> NDArray[np.int64]:
    """How often each token comes."""
    counts: NDArray[np.int64] = np.bincount(draw_tokens(make_row(**given), "seed"), minlength=VOCAB)
    return counts


def fit(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """The chi-square p-value, rare tokens taken together; 0 when an impossible token came."""
    if counts[probs == 0].any():
        return 0.0
    expected = probs * counts.sum()
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    possible = expected > 0
    return float(chisquare(observed[possible], expected[possible]).pvalue)


@pytest.mark.parametrize("given", MECHANISMS.values(), ids=MECHANISMS.keys())
def test_draws_follow_the_reference_distribution(given: dict[str, Any]) -> None:
    assert fit(count_draws(**given), distribution(LOGITS, make_row(**given))) > 1e-3


@pytest.mark.parametrize(
    ("given", "claimed"),
    [
        ({"temperature": 1.0}, {"temperature": 1.1}),
        ({"top_k": 7}, {"top_k": 8}),
        ({"top_k": 7}, {"top_k": 6}),
        ({"temperature": 1.5, "top_p": 0.8}, {"temperature": 1.5, "top_p": 0.85}),
        ({"temperature": 1.5, "min_p": 0.1}, {"temperature": 1.5, "min_p": 0.2}),
        ({"presence_penalty": 1.2}, {"frequency_penalty": 1.2}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.2}),
        ({"logit_bias": {9: 1.0}}, {"logit_bias": {9: 1.2}}),
    ],
)
def test_the_check_rejects_a_distribution_slightly_off(
    given: dict[str, Any], claimed: dict[str, Any]
) -> None:
    assert fit(count_draws(**given), distribution(LOGITS, make_row(**claimed))) < 1e-6


def test_positions_of_one_seed_follow_the_distribution_too() -> None:
    counts = np.bincount(draw_tokens(make_row(), "position"), minlength=VOCAB)
    assert fit(counts, distribution(LOGITS, make_row())) > 1e-3


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_neighbouring_draws_are_independent(vary: str) -> None:
    tokens = draw_tokens(make_row(), vary)
    probs = distribution(LOGITS, make_row())
    pairs = np.bincount(tokens[:-1] * VOCAB + tokens[1:], minlength=VOCAB**2)
    assert fit(pairs, np.outer(probs, probs).flatten()) > 1e-3


def test_a_vocabulary_of_many_equal_tokens_is_drawn_evenly() -> None:
    vocab, draws = 32_000, 1024
    rows = [Row(TokenSampling(seed=seed, max_tokens=1)) for seed in range(draws)]
    tokens = Bench(rows, vocab).sample(torch.zeros(draws, vocab)).tokens_RK[:, 0].numpy()
    assert chisquare(np.bincount(tokens * 32 // vocab, minlength=32)).pvalue > 1e-3
    assert len(np.unique(tokens)) > 0.95 * draws
