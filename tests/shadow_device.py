"""A device made of numpy that proves what the scheduler plans.

Instead of keys and values it stores, for each token, a digest of the whole prefix up to it. So it
sees any wrong block: a stale one, a missing copy, a wrong slot, a prefix hit on other content. It
draws each next token from the prefix's digest, so that any schedule must give the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.cache.groups import CacheLayout
from octavo.cache.prefix import first_visible
from octavo.execution.state_layout import StateLayout
from octavo.scheduling.plan import StepPlan, StepResult

MASK = 2**63 - 1


def extend_digest(digest: int, token: int) -> int:
    return hash((digest, token)) & MASK


def next_token(digest: int, seed: int, vocab_size: int) -> int:
    return hash((digest, seed, 7)) % vocab_size


def expected_tokens(
    prompt: list[int], seed: int, vocab_size: int, max_tokens: int, stop_ids: tuple[int, ...]
) -> list[int]:
    """What a request must give, whatever else runs."""
    digest = 0
    for token in prompt:
        digest = extend_digest(digest, token)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        token = next_token(digest, seed, vocab_size)
        tokens.append(token)
        if token in stop_ids:
            break
        digest = extend_digest(digest, token)
    return tokens


@dataclass(slots=True)
class ShadowStep:
    """A step under way: it has run when its result is asked for, or raises."""

    outcome: StepResult | Exception

    def result(self) -> StepResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class ShadowDevice:
    def __init__(
        self,
        layout: CacheLayout,
        state: StateLayout,
        num_blocks: int,
        num_swap_blocks: int,
        vocab_size: int,
    ) -> None:
        self.layout = layout
        self.state = state
        self.vocab_size = vocab_size
        self.arena = np.zeros(state.num_words, np.int32)
        self.pages = np.full((num_blocks, layout.block_tokens), -1, np.int64)
        self.swap = np.full((num_swap_blocks, layout.block_tokens), -1, np.int64)
        self.raise_for: int | None = None
        """Token id whose appearance in a step's queries makes the step raise."""
        self.broken = False
        """A step has raised and the host has not seen it: what runs meanwhile builds on garbage."""

    def field(self, name: str) -> np.ndarray:
        field = self.state.fields[name]
        words = self.arena[field.offset : field.offset + field.width * self.state.num_slots]
        return words if field.width == 1 else words.reshape(self.state.num_slots, field.width)

    def submit(self, plan: StepPlan) -> ShadowStep:
        try:
            return ShadowStep(self.run(plan))
        except RuntimeError as error:
            self.broken = True
            return ShadowStep(error)

    def run(self, plan: StepPlan) -> StepResult:
        parts = plan.sections()
        for block, swap in plan.moves.swap_out:
            self.swap[swap] = self.pages[block]
        for swap, block in plan.moves.swap_in:
            self.pages[block] = self.swap[swap]
        for source, target in plan.moves.copy:
            self.pages[target] = self.pages[source]
        indices = parts["diff_indices"]
        assert len(np.unique(indices)) == len(indices), "a word is written twice in one diff"
        self.arena[indices] = parts["diff_values"]
        slots, starts = parts["slots"], parts["query_starts"]
        assert len(np.unique(slots)) == len(slots)
        computed, tokens = self.field("computed"), self.field("tokens")
        counts = np.diff(starts)
        assert (counts == plan.query_lens).all()
        assert self.broken or (computed[slots] + counts == plan.context_lens).all()
        assert plan.num_tokens == starts[-1]
        if self.raise_for is not None:
            for slot, count in zip(slots, counts, strict=True):
                seen = tokens[slot, computed[slot] : computed[slot] + count]
                if self.raise_for in seen:
                    raise RuntimeError(f"token {self.raise_for} is poison")
        digests = [
            self._run_row(int(slot), int(count)) for slot, count in zip(slots, counts, strict=True)
        ]
        drawn = []
        row_of = {int(slot): row for row, slot in enumerate(slots)}
        num_tokens, seeds = self.field("num_tokens"), self.field("seed")
        for slot in parts["sample_slots"].tolist():
            row = row_of[slot]
            end = computed[slot] + counts[row]
            assert self.broken or end == num_tokens[slot], "draws before its last token"
            seed = int(seeds[slot].copy().view(np.int64)[0])
            drawn.append(next_token(digests[row], seed, self.vocab_size))
            tokens[slot, num_tokens[slot]] = drawn[-1]
            num_tokens[slot] += 1
        computed[slots] += counts
        return StepResult(tokens=np.array(drawn, np.int32))

    def _run_row(self, slot: int, count: int) -> int:
        """Write the row's new tokens, then check all that its queries see; the last digest."""
        block_tokens = self.layout.block_tokens
        start = int(self.field("computed")[slot])
        tokens = self.field("tokens")[slot]
        digests = [0]
        for token in tokens[: start + count].tolist():
            digests.append(extend_digest(digests[-1], token))
        for index, group in enumerate(self.layout.groups):
            table = self.field(f"table{index}")[slot]
            for position in range(start, start + count):
                block = table[position // block_tokens]
                assert block != 0, "a token is written without a block"
                written = -2 if self.broken else digests[position + 1]
                self.pages[block, position % block_tokens] = written
            if self.broken:
                continue
            for position in range(first_visible(group.spec.window, start), start + count):
                block = table[position // block_tokens]
                found = self.pages[block, position % block_tokens]
                assert found == digests[position + 1], (
                    f"group {index}, slot {slot}: position {position} holds other content"
                )
        return digests[-1]
