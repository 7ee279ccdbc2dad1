"""How the shadow device samples, from digests of prefixes in the place of hidden rows.

It proposes drafts by a rule of its own, some of them wrong, and takes of those that are right as
many as it likes. What a step gives reaches the rows' own tokens late, as on the first of several
stages: just before the first step that may run them again, or when the host knows the step.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np

from octavo.messages import TokenSampling
from octavo.scheduling.slots import ONE_EACH, Yields
from octavo.steps.plan import LogprobArrays, Sections, StepPlan, StepResult, TokenMasks
from octavo_kernels.row_features import RowFeature
from shadow_automata import ShadowAutomata
from shadow_digests import extend_digest, next_token

NOBODYS = 10**6
"""A token that does not count."""


@dataclass(slots=True)
class ShadowRow:
    """A row of a step that has run."""

    slot: int
    digests: list[int]
    """Of its prefixes from its own tokens on, then with each draft more."""
    drafts: list[int]
    is_held: bool = False
    """It has no token in the step, and could not run its last one again."""


@dataclass(slots=True)
class _Accepted:
    step_id: int
    slot: int
    tokens: list[int]
    drafts: list[int]
    """For what follows them."""


class ShadowSampling:
    def __init__(
        self, field, automata: ShadowAutomata, vocab_size: int, yields: Yields, num_stages: int
    ) -> None:
        self._field, self._automata, self._vocab_size = field, automata, vocab_size
        self._yields, self._num_stages = yields, num_stages
        self._rng = random.Random(repr(yields))
        self._accepted: deque[_Accepted] = deque()
        self.attached: dict[int, TokenSampling] = {}
        """Parameters by slot, as the runner keeps them."""
        self.drafts: dict[int, list[int]] = {}
        """By slot, as they stand behind its tokens."""
        self.max_len_S = np.zeros(0, np.int32)
        """Where rows end: no draft stands there, nor is anything sampled beyond."""
        self.most_yielded = 0

    def begin(self, step_id: int) -> None:
        """Bring to the rows what steps have given that are far enough behind."""
        while self._accepted and self._accepted[0].step_id + self._num_stages <= step_id:
            self._arrive(self._accepted.popleft())

    def hear(self, step_id: int) -> None:
        """The host knows the step's tokens, so that all stages have had them."""
        while self._accepted and self._accepted[0].step_id <= step_id:
            self._arrive(self._accepted.popleft())

    def forget_rewritten(self, indices: np.ndarray, first: int) -> None:
        """Drafts stand behind tokens; those of rows whose length the host sets are gone."""
        lengths = indices[(indices >= first) & (indices < first + len(self.max_len_S))]
        for slot in (lengths - first).tolist():
            self.drafts.pop(slot, None)

    def share_out(self, plan: StepPlan, slots: np.ndarray) -> list[list[int]]:
        """The drafts that each row of a step runs: as many as it likes of those there are."""
        left = plan.num_tokens - int(plan.query_lens.sum())
        assert left == 0 or plan.most_yield > 1
        shared = []
        for slot in slots.tolist():
            room = int(self.max_len_S[slot] - self._field("num_tokens")[slot]) - 1
            most = max(0, min(left, plan.most_yield - 1, room))
            shared.append(self.drafts.pop(slot, [])[:most])
            left -= len(shared[-1])
        return shared

    def sample(
        self,
        plan: StepPlan,
        parts: Sections[np.ndarray],
        rows: list[ShadowRow],
        prompt_logprobs: LogprobArrays | None,
        masks: TokenMasks | None,
    ) -> StepResult:
        """``rows`` are those that sample."""
        bursts: list[list[int]] = []
        places: list[int] = []
        width = 1 if self._yields == ONE_EACH else self._yields.most
        for at, row in enumerate(rows):
            allowed = None if masks is None else _allowed(masks, at)
            bursts.append(self._burst(row, int(plan.features[at]), allowed))
            places += range(length := int(self._field("num_tokens")[row.slot]), length + width)
            drafts = self._proposed(row, bursts[-1]) if width > 1 else []
            self._accepted.append(_Accepted(plan.step_id, row.slot, bursts[-1], drafts))
        if self._num_stages == 1:
            self.hear(plan.step_id)
        tokens_RK = np.full((len(rows), width), NOBODYS, np.int32)
        for at, burst in enumerate(bursts):
            tokens_RK[at, : len(burst)] = burst
        counts_R = np.array([len(burst) for burst in bursts], np.int32)
        self.most_yielded = max(self.most_yielded, counts_R.max(initial=0))
        return StepResult(
            tokens_RK=tokens_RK,
            counts_R=None if self._yields == ONE_EACH else counts_R,
            logprobs=logprobs_of(tokens_RK.ravel().tolist(), places, plan.num_logprobs),
            prompt_logprobs=prompt_logprobs,
        )

    def _burst(self, row: ShadowRow, planned_features: int, mask: set[int] | None) -> list[int]:
        """Tokens of a row: each further one behind a draft that was what it should be."""
        slot, tokens = row.slot, list[int]()
        length = int(self._field("num_tokens")[slot])
        most = 1 + (len(row.drafts) if mask is None else 0)  # the host's mask is for one token
        if self._yields != ONE_EACH:
            if self._rng.random() < 0.2 and not row.is_held:
                most = self._rng.randint(self._yields.fewest, most)
            most = min(most, int(self.max_len_S[slot]) - length)
        for ahead in range(most):
            allowed = mask
            if self._automata.has(slot):
                assert mask is None, "the host masks a row that the device masks"
                allowed = self._automata.allowed(slot)
            features = self._features(slot, length + ahead, planned_features)
            token = self._token(slot, row.digests[ahead], features, allowed)
            tokens.append(token)
            if self._automata.has(slot):
                self._automata.walk(slot, token)
            if row.drafts[ahead : ahead + 1] != [token]:
                break
        return tokens

    def _features(self, slot: int, length: int, planned: int) -> int:
        features = int(self._field("features")[slot])
        if length >= self._field("min_len")[slot]:
            features &= ~RowFeature.MIN_TOKENS
        superfluous = 0 if self._yields == ONE_EACH else planned & RowFeature.MIN_TOKENS
        assert planned == features | superfluous, "the host plans another row's work"
        return features

    def _token(self, slot: int, digest: int, features: int, allowed: set[int] | None) -> int:
        banned = self._field("stop_ids")[slot].tolist() if features & RowFeature.MIN_TOKENS else ()
        if allowed:  # a row that has ended may have none left: its sample is nobody's
            banned = set(range(self._vocab_size)) - allowed
        bias = 0.0
        if features & RowFeature.BIAS:
            bias = sum(self.attached[slot].logit_bias.values())
        seed = int(self._field("seed")[slot].copy().view(np.int64)[0])
        return next_token(digest, seed, self._vocab_size, bias, banned)

    def _arrive(self, accepted: _Accepted) -> None:
        slot, tokens_L = accepted.slot, self._field("tokens")[accepted.slot]
        num_tokens, computed = self._field("num_tokens"), self._field("computed")
        for token in accepted.tokens:
            tokens_L[num_tokens[slot]] = token
            num_tokens[slot] += 1
        computed[slot] = first = num_tokens[slot] - 1
        tokens_L[first + 1 : first + 1 + len(accepted.drafts)] = accepted.drafts
        self.drafts[slot] = accepted.drafts

    def _proposed(self, row: ShadowRow, tokens: list[int]) -> list[int]:
        """Mostly what comes next, where no guide of the host says otherwise."""
        digest, drafts = row.digests[max(len(tokens) - 1, 0)], list[int]()
        if tokens:
            digest = extend_digest(digest, tokens[-1])
        features = int(self._field("features")[row.slot]) & ~RowFeature.MIN_TOKENS
        room = int(self.max_len_S[row.slot] - self._field("num_tokens")[row.slot]) - len(tokens)
        has_automaton = self._automata.has(row.slot)
        place = self._automata.save(row.slot)
        for _ in range(min(self._rng.randint(0, self._yields.most), room)):
            allowed = self._automata.allowed(row.slot) if has_automaton else None
            draft = self._token(row.slot, digest, features, set(allowed or ()))
            if has_automaton:
                self._automata.walk(row.slot, draft)
            if self._rng.random() < 0.15:
                draft = self._rng.randrange(self._vocab_size)
            drafts.append(draft)
            digest = extend_digest(digest, draft)
        self._automata.restore(row.slot, place)
        return drafts


def logprobs_of(token_ids: list[int], places: list[int], count: int) -> LogprobArrays | None:
    """Arrays that say whose they are: ids count up from the chosen one, ranks are the places."""
    if count < 0:
        return None
    ids_R1 = np.array(token_ids, np.int32)[:, None]
    return LogprobArrays(
        token_ids=ids_R1 + np.arange(count + 1, dtype=np.int32),
        logprobs=-(ids_R1 + np.arange(count + 1, dtype=np.float32)),
        ranks=np.array(places, np.int32),
    )


def _allowed(masks: TokenMasks, place: int) -> set[int] | None:
    for row, bits_W in zip(masks.rows_M.tolist(), masks.bits_MW, strict=True):
        if row == place:
            bits = np.unpackbits(bits_W.view(np.uint8), bitorder="little")
            return set(np.flatnonzero(bits).tolist())
    return None
