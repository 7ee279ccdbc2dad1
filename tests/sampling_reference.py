"""The sampler's meaning in plain loops over one row, and small device states to compare it on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.messages import TokenSampling
from octavo.sampling.sampler import SampledTokens, Sampler
from octavo.sampling.state import SampleBatch, SamplingState, TokenMask
from octavo.steps.features import RowFeature, features_of

NUM_STOP_IDS = 8

Logits = Sequence[float] | NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """One sequence and its parameters."""

    sampling: TokenSampling
    prompt: tuple[int, ...] = (0,)
    output: tuple[int, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output


@dataclass
class Bench:
    """A sampler whose slot i holds row i."""

    rows: Sequence[Row]
    vocab_size: int
    device: str = "cpu"
    sampler: Sampler = field(init=False)
    state: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        self.state = make_state(self.rows, self.device)
        self.sampler = Sampler(self.vocab_size, self.state)
        for slot, row in enumerate(self.rows):
            if features_of(row.sampling) & (RowFeature.BIAS | RowFeature.BAD_WORDS):
                self.sampler.attach(slot, row.sampling)

    def sample(
        self,
        logits_RV: Tensor,
        slots: Sequence[int] | None = None,
        num_logprobs: int = -1,
        mask: TokenMask | None = None,
    ) -> SampledTokens:
        return self.sampler.sample(logits_RV, self.batch(slots, num_logprobs, mask))

    def batch(
        self,
        slots: Sequence[int] | None = None,
        num_logprobs: int = -1,
        mask: TokenMask | None = None,
    ) -> SampleBatch:
        slots = range(len(self.rows)) if slots is None else slots
        rows = [self.rows[slot] for slot in slots]
        return SampleBatch(
            slots_R=torch.tensor(list(slots), dtype=torch.int32, device=self.device),
            features_R=np.array([features_of(row.sampling) for row in rows], np.int32),
            num_logprobs=num_logprobs,
            mask=mask,
        )


def make_state(rows: Sequence[Row], device: str = "cpu") -> SamplingState:
    max_len = max(len(row.tokens) for row in rows) + 1
    params = [row.sampling for row in rows]
    tokens = np.full((len(rows), max_len), 10**6, np.int32)  # poison past the end
    stop_ids = np.full((len(rows), NUM_STOP_IDS), -1, np.int32)
    for slot, row in enumerate(rows):
        tokens[slot, : len(row.tokens)] = row.tokens
        ids = row.sampling.stop_token_ids + row.sampling.eos_token_ids
        stop_ids[slot, : len(ids)] = ids
    seeds = np.array([p.seed & (2**64 - 1) for p in params], np.uint64)

    def ints(values: Sequence[int] | NDArray[np.int32]) -> Tensor:
        return torch.tensor(np.array(values, np.int32), device=device)

    def floats(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return SamplingState(
        tokens_SL=ints(tokens),
        num_tokens_S=ints([len(row.tokens) for row in rows]),
        prompt_len_S=ints([len(row.prompt) for row in rows]),
        features_S=ints([int(features_of(p)) for p in params]),
        temperature_S=floats([p.temperature for p in params]),
        top_p_S=floats([p.top_p for p in params]),
        min_p_S=floats([p.min_p for p in params]),
        presence_S=floats([p.presence_penalty for p in params]),
        frequency_S=floats([p.frequency_penalty for p in params]),
        repetition_S=floats([p.repetition_penalty for p in params]),
        top_k_S=ints([p.top_k for p in params]),
        seed_S2=ints(seeds.view(np.int32).reshape(-1, 2)),
        min_len_S=ints([len(row.prompt) + row.sampling.min_tokens for row in rows]),
        stop_ids_SK=ints(stop_ids),
    )


def edited_scores(logits: Logits, row: Row) -> list[float]:
    """Logits after everything that a greedy row sees too."""
    sampling = row.sampling
    scores = [float(logit) for logit in logits]
    for token in range(len(scores)):
        if sampling.allowed_token_ids is not None and token not in sampling.allowed_token_ids:
            scores[token] = -math.inf
        scores[token] += sampling.logit_bias.get(token, 0.0)
        stops = sampling.stop_token_ids + sampling.eos_token_ids
        if token in stops and len(row.output) < sampling.min_tokens:
            scores[token] = -math.inf
    for word in sampling.bad_word_ids:
        head = word[:-1]
        if head == row.tokens[len(row.tokens) - len(head) :]:
            scores[word[-1]] = -math.inf
    for token in set(row.tokens):
        if scores[token] > 0:
            scores[token] /= sampling.repetition_penalty
        else:
            scores[token] *= sampling.repetition_penalty
        count = row.output.count(token)
        scores[token] -= sampling.frequency_penalty * count
        scores[token] -= sampling.presence_penalty * (count > 0)
    return scores


def distribution(logits: Logits, row: Row) -> NDArray[np.float64]:
    """What a random row's token is drawn from."""
    sampling = row.sampling
    scores = [score / sampling.temperature for score in edited_scores(logits, row)]
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    kept = [weight >= sampling.min_p and weight > 0 for weight in weights]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if sampling.top_k > 0:
        for token in order[sampling.top_k :]:
            kept[token] = False
    if sampling.top_p < 1:
        total = sum(weight for weight, keep in zip(weights, kept, strict=True) if keep)
        mass, last = 0.0, math.inf
        for token in order:
            if not kept[token]:
                continue
            if mass >= sampling.top_p * total and scores[token] < last:
                kept[token] = False
            else:
                mass, last = mass + weights[token], scores[token]
    probs = np.array(weights) * kept
    return probs / probs.sum()


def hashed_log_exponential(seed: int, position: int, token: int) -> float:
    """The noise of one token, in Python's unbounded integers."""
    word = 2**32 - 1

    def mix(x: int) -> int:
        x = ((x ^ x >> 16) * 0x7FEB352D) & word
        x = ((x ^ x >> 15) * 0x846CA68B) & word
        return x ^ x >> 16

    low, high = seed & word, seed >> 32 & word
    first = mix(mix(mix(low ^ 0x9E3779B9) ^ high) ^ position)
    second = mix(mix(mix(high ^ 0x846CA68B) ^ position) ^ low)
    x = ((mix(token) ^ first) * 0x7FEB352D) & word
    x = (((x ^ x >> 15) ^ second) * 0x846CA68B) & word
    x = (x ^ x >> 16) & 0x7FFFFFFF
    unit = (x + 0.5) * 2.0**-31 * (1 - 2.0**-24)
    return math.log(-math.log1p(-unit))


def expected_token(logits: Logits, row: Row) -> int:
    """The token that the sampler must choose."""
    if row.sampling.temperature < 1e-5:
        scores = edited_scores(logits, row)
        return scores.index(max(scores))
    probs = distribution(logits, row)
    position = len(row.tokens)
    race = [
        math.log(prob) - hashed_log_exponential(row.sampling.seed, position, token)
        if prob > 0
        else -math.inf
        for token, prob in enumerate(probs)
    ]
    return race.index(max(race))
