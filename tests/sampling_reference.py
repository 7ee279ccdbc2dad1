"""The sampler's meaning in plain loops over one row, and small device states to compare it on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.messages import TokenSampling
from octavo.sampling.forward import Forward, Sampled
from octavo.sampling.sampler import Sampler
from octavo.steps.device_state import DeviceState
from octavo.steps.features import features_of
from octavo.steps.layout import StateDiff, StateLayout
from octavo.steps.loads import AutomatonLoad
from octavo.steps.plan import Attached, Sections, StepPlan, TokenMasks
from octavo.steps.slot_fields import STOP_IDS
from octavo.steps.staging import Staging
from octavo_kernels.row_features import RowFeature, work_of
from octavo_kernels.sample import SamplingState
from octavo_registry.model import Model

NUM_STOP_IDS = 8

Logits = Sequence[float] | NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """One sequence and its parameters."""

    sampling: TokenSampling
    prompt: tuple[int, ...] = (0,)
    output: tuple[int, ...] = ()
    automaton: ByteAutomatonGuide | None = None
    """What the device masks it by."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.output


def params(**given: Any) -> TokenSampling:
    return TokenSampling(**{"seed": 1, "max_tokens": 8, "temperature": 0.0} | given)


def any_row(rng: random.Random, vocab: int) -> Row:
    """A row with any mix of parameters."""

    def maybe(value: Any, neutral: Any) -> Any:
        return value if rng.random() < 0.4 else neutral

    def ids(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(vocab), rng.randint(1, most)))

    prompt = tuple(rng.choices(range(vocab), k=rng.randint(1, 30)))
    output = tuple(rng.choices(range(vocab), k=rng.randint(0, 30)))
    sequence = prompt + output
    word = (*sequence[-rng.randint(1, 4) :], *ids(1))
    sampling = params(
        seed=rng.randrange(-(2**63), 2**63),
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
        top_k=maybe(rng.choice([1, 5, 50, 1000]), 0),
        top_p=maybe(rng.uniform(0.05, 0.99), 1.0),
        min_p=maybe(rng.uniform(0.01, 0.5), 0.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2.0), 1.0),
        logit_bias=maybe({token: rng.uniform(-9, 9) for token in ids(40)}, {}),
        allowed_token_ids=maybe(ids(60), None),
        bad_word_ids=maybe((word, ids(1), ids(3)), ()),
        min_tokens=maybe(rng.randint(1, 40), 0),
        stop_token_ids=maybe(ids(4), ()),
        eos_token_ids=ids(NUM_STOP_IDS - 4),
    )
    return Row(sampling, prompt, output)


class LogitsAsHidden:
    """A model whose hidden states are its logits."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD


@dataclass
class Bench:
    """A sampler whose slot i holds row i."""

    rows: Sequence[Row]
    vocab_size: int
    device: str = "cpu"
    logprobs_mode: str = "raw_logprobs"
    room: int = 1
    """For tokens behind those of the longest row."""
    device_state: DeviceState = field(init=False)
    sampler: Sampler = field(init=False)
    state: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        device = torch.device(self.device)
        pool = AutomatonPool(self.rows)
        state = make_state(self.rows, device, self.room, pool)
        self.device_state, self.state = state, state.sampling
        self.sampler = Sampler(
            model=cast(Model, LogitsAsHidden()),
            state=state,
            vocab_size=self.vocab_size,
            processors=(),
            adapters=None,
            staging=Staging(device, 1),
            logprobs_mode=self.logprobs_mode,
        )
        named = RowFeature.BIAS | RowFeature.BAD_WORDS
        attach = [
            Attached(slot, row.sampling)
            for slot, row in enumerate(self.rows)
            if features_of(row.sampling) & named
        ]
        plan = make_plan(self.rows, attach=attach)
        plan.automata = pool.loads
        self.sampler.begin(plan)

    def sample(
        self,
        logits_RV: Tensor,
        slots: Sequence[int] | None = None,
        num_logprobs: int = -1,
        masks: TokenMasks | None = None,
        of_allowed: NDArray[np.bool_] | None = None,
    ) -> Sampled:
        """What a step samples; the state stays as it is."""
        arena = self.device_state.arena.clone()
        forward = self.forward(logits_RV, slots, num_logprobs, of_allowed)
        sampled = self.sampler.sample(forward, masks)
        self.device_state.arena.copy_(arena)
        return sampled

    def forward(
        self,
        logits_RV: Tensor,
        slots: Sequence[int] | None = None,
        num_logprobs: int = -1,
        of_allowed: NDArray[np.bool_] | None = None,
    ) -> Forward:
        slots = range(len(self.rows)) if slots is None else slots
        slots_R = torch.tensor(list(slots), dtype=torch.int32, device=self.device)
        rows = [self.rows[slot] for slot in slots]
        return Forward(
            plan=make_plan(rows, slots, num_logprobs=num_logprobs, of_allowed=of_allowed),
            hidden_RD=logits_RV,
            slots_R=slots_R,
            query_starts_R1=torch.arange(len(rows) + 1, dtype=torch.int32, device=self.device),
            sample_slots_R=slots_R,
            prompt_targets=slots_R[:0],
            spans=None,
        )


class AutomatonPool:
    """Where the automata of rows begin, and what brings them there; all have one vocabulary."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.loads: list[AutomatonLoad] = []
        self.first_by_row: list[int] = []
        first = 4
        for row in rows:
            self.first_by_row.append(first if row.automaton else 0)
            if row.automaton is not None:
                words = row.automaton.words
                self.loads.append(AutomatonLoad(first, words, row.automaton.vocabulary))
                first += -(-len(words) // 4) * 4


def make_plan(
    rows: Sequence[Row],
    slots: Sequence[int] | None = None,
    *,
    num_logprobs: int = -1,
    of_allowed: NDArray[np.bool_] | None = None,
    attach: Sequence[Attached] = (),
) -> StepPlan:
    """A step that samples for these rows."""
    features_R = np.array([features_of(row.sampling) for row in rows], np.int32)
    ones_R = np.ones(len(rows), np.int32)
    return StepPlan(
        step_id=1,
        buffer=np.zeros(0, np.int32),
        sizes=Sections._make([0] * len(Sections._fields)),
        num_tokens=len(rows),
        slots=np.array(range(len(rows)) if slots is None else slots, np.intp),
        query_lens=ones_R,
        context_lens=ones_R,
        features=features_R,
        work=work_of(features_R),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=-1,
        of_allowed=np.zeros(len(rows), np.bool_) if of_allowed is None else of_allowed,
        masked=any(row.automaton is not None for row in rows),
        attach=list(attach),
    )


def make_state(
    rows: Sequence[Row], device: torch.device, room: int, pool: AutomatonPool
) -> DeviceState:
    max_len = max(len(row.tokens) for row in rows) + room
    layout = StateLayout(num_slots=len(rows), max_model_len=max_len, max_blocks=1, num_groups=1)
    state, diff = DeviceState(layout, device), StateDiff(layout)
    state["tokens"].fill_(10**6)  # poison past the end
    for slot, row in enumerate(rows):
        stop_ids = np.full(STOP_IDS, -1, np.int32)
        ids = row.sampling.stop_token_ids + row.sampling.eos_token_ids
        stop_ids[: len(ids)] = ids
        diff.put_slot(
            slot,
            row.sampling,
            num_tokens=len(row.tokens),
            computed=0,
            prompt_len=len(row.prompt),
            min_len=len(row.prompt) + row.sampling.min_tokens,
            max_len=max_len,
            num_drafts=0,
            state_line=0,
            features=int(features_of(row.sampling)),
            adapter_first=0,
            adapter_rank=0,
            position_delta=0,
            cross_rows=0,
            automaton=pool.first_by_row[slot],
            automaton_state=0,
            automaton_depth=0,
            automaton_stack=(),
            seed=np.array([row.sampling.seed & (2**64 - 1)], np.uint64).view(np.int32),
            stop_ids=stop_ids,
            tokens=row.tokens,
        )
    state.apply(*(torch.from_numpy(words).to(device) for words in diff.joined()))
    return state


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
    """What a random row's token is sampled from."""
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
