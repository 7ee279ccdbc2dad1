"""A step of the shadow device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.steps.plan import StepResult, TokenMasks


@dataclass(slots=True)
class ShadowStep:
    """A step under way: it has run when its result is asked for, or raises."""

    outcome: StepResult | Exception | Callable[[TokenMasks], StepResult]
    """The last where it awaits masks."""
    blocks: frozenset[int] = frozenset()
    """All that it may read or write."""
    step_id: int = 0

    def result(self) -> StepResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert isinstance(self.outcome, StepResult), "it awaits masks"
        return self.outcome

    def mask(self, masks: TokenMasks) -> None:
        if not isinstance(self.outcome, Exception):
            assert not isinstance(self.outcome, StepResult)
            self.outcome = self.outcome(masks)
