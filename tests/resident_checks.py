"""What holds of the pools of residents: who is pinned, where each lies, what is loaded and when."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np

from octavo.residency.pool import DevicePool, Resident
from octavo.scheduling.scheduler import Scheduler
from octavo.steps.loads import Span
from octavo.steps.plan import StepPlan


class ResidentChecks:
    """Follows one scheduler's pools."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.pools = (scheduler.adapters.pool, scheduler.automata, scheduler.media.pool)
        self.told: dict[tuple[str, Hashable], object] = {}
        """What was loaded since the last fault, while it lies there."""

    def check(self) -> None:
        sequences = [each for each in self.scheduler.slot_table.sequences if each is not None]
        used = Counter((pool.name, need.key) for each in sequences for pool, need in each.needs)
        used.update(("media", key) for key in self.scheduler.media._used)
        pins = {
            (pool.name, key): held.num_pins
            for pool in self.pools
            for key, held in pool._held.items()
        }
        assert {name: count for name, count in pins.items() if count} == used
        known = self.scheduler.adapters._known
        assert {*self.scheduler.adapters.pool._held} <= {*known}, "an adapter of nobody lies there"
        for each in sequences:
            lie = {pool.name: pool.places_of(need.key) for pool, need in each.needs}
            assert each.places == lie, "a resident was moved under who uses it"
        for pool in self.pools:
            taken = [place for held in pool._held.values() for place in _all(held.places)]
            assert len(set(taken)) == len(taken), "a place was given twice"
            assert set(pool._to_load) <= set(pool._held)
            assert _num_free(pool) == pool.num_places - len(taken), "a place was lost"
        for name, key in [*self.told]:
            (pool,) = (pool for pool in self.pools if pool.name == name)
            if pool._held.get(key) is not self.told[name, key]:
                del self.told[name, key]

    def check_loads(self, plan: StepPlan) -> None:
        """Before anything else of that plan is looked at."""
        adapters, automata, media = self.pools
        for span, adapter in plan.adapters:
            self._tell(adapters, adapter.head.content_hash, span)
        for load in plan.automata:
            (key,) = (
                key for key, held in automata._held.items() if held.places.first == load.first
            )
            self._tell(automata, key, automata.places_of(key))
        for each in plan.encode:
            self._tell(media, each.item.content_hash, each.rows)
        assert not any(pool._to_load for pool in self.pools), "a load is left out"

    def after_fault(self) -> None:
        self.told.clear()

    def _tell(self, pool: DevicePool, key: Hashable, places: Iterable[int]) -> None:
        assert _all(pool.places_of(key)) == _all(places)
        held = pool._held[key]
        assert self.told.get((pool.name, key)) is not held, "a resident is loaded twice"
        self.told[pool.name, key] = held


def has_room(pool: DevicePool, resident: Resident) -> bool:
    """Whether ``provide`` would find places now; nothing is provided."""
    tried = copy.copy(pool)
    tried._held, tried._to_load = pool._held.copy(), {}
    tried._places = copy.deepcopy(pool._places)
    return tried.provide(resident) is not None


def _all(places: Span | np.ndarray) -> list[int]:
    if isinstance(places, Span):
        return list(range(places.first, places.first + places.length))
    return [int(place) for place in places]


def _num_free(pool: DevicePool) -> int:
    places = pool._places
    if hasattr(places, "_free"):
        return len(places._free)
    return pool.num_places - sum(span.length for span in places._taken)
