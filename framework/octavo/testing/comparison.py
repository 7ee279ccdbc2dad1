"""Continuations against a reference: every distribution, and every greedy choice.

Axis suffixes: N tokens of a continuation, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.testing.engine_run import Logprobs, SampledSequence, Tokens, tokens_of
from octavo.testing.reference import Reference

MAX_DIFFERENCE = 1e-4
"""Largest difference of logits in units of their spread, the mean of their deviations."""
TIE = 1e-5
"""A greedy choice is free where the reference's best two logits are as close as this."""


@dataclass(slots=True)
class Comparison:
    """What is found so far. Log probabilities stand for logits: no constant counts."""

    num_compared: int = 0
    largest_difference: float = 0.0
    """Largest difference of logits that pass, in units of their spread."""
    problems: list[str] = field(default_factory=list)
    """One line for each sequence that differs."""
    ties: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.num_compared > 0 and not self.problems

    def as_text(self) -> str:
        """The first problem and how many there are, or how close it was; and every tie."""
        if self.problems:
            counts = f"{len(self.problems)} of {self.num_compared} sequences differ"
            text = f"{counts}; {self.problems[0]}"
        else:
            text = f"logits within {self.largest_difference:.1e} of their spread"
        return "; ".join([text, *self.ties])

    def add(
        self,
        what: str,
        found: Logprobs,
        expected: Logprobs,
        greedy_tokens: Tokens | None = None,
    ) -> None:
        """Compare one sequence's distributions, and its choices where they are greedy ones."""
        self.num_compared += 1
        problem = self._logits_problem(found, expected)
        if greedy_tokens is not None:
            problem = self._choice_problem(greedy_tokens, expected) or problem
        if problem is not None:
            self.problems.append(f"{what}, {problem}")

    def _logits_problem(self, found_NV: Logprobs, expected_NV: Logprobs) -> str | None:
        difference_N = np.abs(found_NV - expected_NV).max(axis=1) / expected_NV.std(axis=1).mean()
        largest = float(difference_N.max())
        if largest <= MAX_DIFFERENCE:
            self.largest_difference = max(self.largest_difference, largest)
            return None
        position = int((~(difference_N <= MAX_DIFFERENCE)).argmax())  # so that NaN counts
        return f"position {position}: logits differ by {difference_N[position]:.2g} of their spread"

    def _choice_problem(self, tokens: Tokens, expected_NV: Logprobs) -> str | None:
        """A choice that is not the reference's best is a problem, or a tie that is told."""
        chosen_N = np.array(tokens)
        best_N = expected_NV.argmax(axis=1)
        for position in np.flatnonzero(chosen_N != best_N).tolist():
            chosen, best = int(chosen_N[position]), int(best_N[position])
            lead = float(expected_NV[position, best] - expected_NV[position, chosen])
            found = f"position {position}: token {chosen} instead of {best}, which leads by"
            if not lead <= TIE:
                return f"{found} {lead:.2g}"
            self.ties.append(f"tie at {found} {lead:.1e}")
        return None


def compare(
    continuations: Sequence[SampledSequence], reference: Reference, *, greedy: bool = True
) -> Comparison:
    """Compare each continuation with the reference on the very tokens that it sampled.

    Greedy ones must be what the reference would have chosen at each position, given the tokens
    before it; by induction they are then the reference's own greedy continuation.
    """
    comparison = Comparison()
    expected = reference.logprobs([each.sequence for each in continuations])
    for index, (each, logprobs) in enumerate(zip(continuations, expected, strict=True)):
        prompt_length = len(tokens_of(each.prompt))
        comparison.add(
            f"sequence {index}, prompt of {prompt_length}",
            each.logprobs_NV,
            logprobs[prompt_length - 1 :],
            each.tokens if greedy else None,
        )
    return comparison
