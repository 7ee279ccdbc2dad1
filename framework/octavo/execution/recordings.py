"""Which recorded steps the ranks have: plans name what to run, and no rank decides alone.

A few sizes are prepared before the first request, the others while there is nothing to do, or
behind the first step that could have used them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from octavo.steps.plan import StepPlan
from octavo.steps.recording import Recording, StepKind

SMALL_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
SIZES = (*SMALL_SIZES, *range(80, 257, 16), *range(288, 1025, 32))
"""Rows of a recording. Steps of more rows than the largest run as they are: the device is busy with
one for longer than the host needs to launch it."""
WARM_UP_ROWS = (1024, 32, 16, 8, 4, 2, 1)
"""Decode steps of up to so many rows are recorded before the first request."""


class Recordings:
    """Names the recording of a plan once every rank has it; until then the plan runs eagerly."""

    def __init__(
        self,
        prepare: Callable[[Recording], bool],
        *,
        num_slots: int,
        has_adapters: bool,
        has_processors: bool,
    ) -> None:
        """``prepare`` lets all ranks record, and says whether all of them have."""
        sizes = [size for size in SIZES if size < num_slots]
        self._sizes = [*sizes, num_slots] if num_slots <= SIZES[-1] else sizes
        self._prepare = prepare
        self._has_adapters = has_adapters
        self._has_processors = has_processors
        self._prepared: dict[Recording, bool] = {}
        self._can_record = True
        self._kinds: dict[StepKind, set[int]] = {}
        """Sizes that idle time need not look at, of kinds that there have been."""
        self._named: tuple[int, Recording | None] = (0, None)
        """The first of the steps that the last plan with a recording repeats, or that plan."""

    def warm_up(self) -> None:
        """Prepare greedy steps of some sizes; memory is shared, so the most rows come first."""
        for has_adapters in (True, False) if self._has_adapters else (False,):
            for num_rows in WARM_UP_ROWS:
                self.prepare(self._of(StepKind(True, has_adapters=has_adapters), num_rows))
        # A model may wait for the device in every step.
        self._can_record = any(self._prepared.values())

    def name(self, plan: StepPlan) -> Recording | None:
        """Let the plan name its recording if all have it.

        Else returns the one to prepare once the plan is submitted, if there is any: what it loads
        may have to be there.
        """
        first, named = self._named
        if plan.repeats == first != 0:
            plan.recording = named
            return None
        if plan.adapters:  # they may add at other sites, for which steps are recorded anew
            for kind, sizes in self._kinds.items():
                if kind.has_adapters:
                    sizes.clear()
        if not self._can_record or not plan.is_decode or plan.num_rows > self._sizes[-1]:
            return None
        recording = self._of(self._kind(plan), plan.num_rows)
        prepared = self._prepared.get(recording)
        if not prepared:
            return recording if prepared is None else None
        plan.recording = recording
        self._named = plan.repeats or plan.step_id, recording
        return None

    def prepare(self, recording: Recording) -> None:
        """Let all ranks record it; one that cannot be is not tried again."""
        self._kinds.setdefault(recording.kind, set()).add(recording.num_rows)
        self._prepared[recording] = False  # if it raises
        self._prepared[recording] = self._prepare(recording)

    def prepare_another(self) -> bool:
        """Prepare a size that no step of its kind has needed yet; False: none is left."""
        if not self._can_record:
            return False
        for kind, tried in self._kinds.items():
            for size in reversed(self._sizes):
                if size not in tried:
                    self.prepare(self._of(kind, size))
                    return True
        return False

    def _kind(self, plan: StepPlan) -> StepKind:
        if plan.num_logprobs >= 0 or plan.awaits_masks or plan.num_held or self._has_processors:
            return StepKind(False, has_adapters=plan.has_adapters)
        return StepKind(True, plan.work, plan.has_adapters, plan.masked)

    def _of(self, kind: StepKind, num_rows: int) -> Recording:
        """The smallest recording that has room."""
        most = min(num_rows, self._sizes[-1])
        size = self._sizes[bisect_left(self._sizes, most)]
        return Recording(kind, size, size)
