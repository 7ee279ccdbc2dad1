"""What an engine does for its requests, as seen by the loop that launches steps."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from octavo.messages import StepOutputs
from octavo.steps.plan import StepResult, TokenMasks

Request = TypeVar("Request")
Record = TypeVar("Record")


class Work(Protocol[Request, Record]):
    """Plans steps ahead of their results, and says what the results mean.

    A record is what it remembers of a step under way. Each plan is submitted in the order of
    planning, and each record comes back once, in that order, to ``apply`` or to ``fail``.
    """

    @property
    def has_work(self) -> bool:
        """Whether something waits, runs or is under way, or an end has not been told yet."""
        ...

    def add(self, requests: list[Request]) -> None:
        """Queue them; one that is refused ends with an error in the next outputs."""
        ...

    def abort(self, ids: list[int]) -> None:
        """End these now and free what they hold; unknown ids are ignored."""
        ...

    def plan(self) -> tuple[Any, Record] | None:
        """The next step; None when there is nothing to run now.

        With nothing under way it may wait a moment for something to run.
        """
        ...

    def masks(self, record: Record, outputs: StepOutputs) -> TokenMasks:
        """The masks that a step's plan awaits; what they end or add goes to ``outputs``."""
        ...

    def apply(self, record: Record, result: StepResult) -> StepOutputs:
        """Take a step's result."""
        ...

    def fail(self, record: Record, later: list[Record], error: BaseException) -> StepOutputs:
        """A step raised, with those ``later`` ones under way behind it."""
        ...

    def take_events(self) -> StepOutputs:
        """What has happened without a step's result, told once."""
        ...

    def stats(self) -> dict[str, int]:
        """Counts, now or since the start."""
        ...

    def close(self) -> None:
        """End what runs beside the steps."""
        ...
