"""Pools of residents: where each lies, who gives way, and mistakes that walks or tests see."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import scheduling_world
from mutants import mutated
from octavo.residency import adapters, places, pool
from octavo.residency.places import Scattered, Spans
from octavo.residency.pool import DevicePool, Need, Resident, provide_all
from octavo.scheduling import admission, family, media, placement, scheduler
from octavo.scheduling.media import MediaScheduler
from octavo.steps.loads import Span
from scheduling_cases import MAX_CROSS_ROWS, Case
from scheduling_walks import walk


def some(key: str, size: int) -> Resident[str]:
    return Resident(key, size, key)


A, B, C, D = some("a", 3), some("b", 3), some("c", 2), some("d", 4)


def scattered(num_places: int) -> DevicePool[str, np.ndarray]:
    return DevicePool("some", Scattered(num_places))


def lies(pool: DevicePool[str, np.ndarray], resident: Resident[str]) -> list[int] | None:
    found = pool.provide(resident)
    return None if found is None else found.tolist()


def test_scattered_residents_take_what_others_gave_up_wherever_it_is() -> None:
    made = scattered(8)
    assert [lies(made, each) for each in (A, B, C)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    made.pin("b")
    assert lies(made, D) == [0, 1, 2, 6], "the one needed longest ago went first, then the next"
    assert [len(made), "a" in made, "c" in made] == [2, False, False]
    assert [item for _, item in made.take_loads()] == ["b", "d"]
    assert (made.take_loads(), made.num_loads) == ([], 2)


def test_spans_fill_gaps_that_are_large_enough() -> None:
    made = Spans(9, first=1)
    assert [made.take(count) for count in (3, 2, 3)] == [(1, 3), (4, 2), (6, 3)]
    made.give(Span(1, 3))
    assert made.take(4) is None
    assert [made.take(count) for count in (2, 1)] == [(1, 2), (3, 1)]
    assert made.take(1) is None


def test_what_is_needed_again_goes_later() -> None:
    made = scattered(8)
    for each in (A, B, C, A):
        made.provide(each)
    made.provide(some("other", 3))
    assert ["a" in made, "b" in made] == [True, False]


def test_nobody_gives_way_where_that_does_not_help() -> None:
    for made in (scattered(8), DevicePool("spans", Spans(8))):
        for each in (A, B):
            made.provide(each)
        made.pin("b")
        assert made.provide(some("large", 6)) is None
        assert "a" in made


def test_what_is_pinned_twice_stays_until_it_is_unpinned_twice() -> None:
    made = scattered(3)
    made.provide(A)
    for _ in range(2):
        made.pin("a")
    made.unpin("a")
    assert made.is_pinned("a")
    assert made.provide(B) is None
    made.unpin("a")
    assert not made.is_pinned("a")
    assert lies(made, B) == [0, 1, 2]


def test_what_no_plan_has_taken_is_dropped_and_the_rest_stays() -> None:
    made = scattered(8)
    made.provide(A)
    made.take_loads()
    made.provide(B)
    made.drop_loads()
    assert ["a" in made, "b" in made] == [True, False]
    assert made.take_loads() == []


def test_after_a_fault_all_is_loaded_again_or_nothing_is_there() -> None:
    for reload in (True, False):
        made = DevicePool("spans", Spans(8, first=1))
        for each in (A, B):
            made.provide(each)
        made.take_loads()
        made.after_fault(reload=reload)
        assert [item for _, item in made.take_loads()] == (["a", "b"] if reload else [])
        assert made.provide(B) == ((4, 3) if reload else (1, 3))


def test_all_needs_are_provided_for_as_far_as_there_is_room() -> None:
    first, second = DevicePool("first", Spans(3)), DevicePool("second", Spans(3))
    assert provide_all([Need(first, A), Need(second, B)]) == {"first": (0, 3), "second": (0, 3)}
    assert provide_all([Need(first, D), Need(second, C)]) is None
    assert "c" in second
    assert provide_all([]) == {}


def test_a_step_that_was_not_planned_encodes_nothing() -> None:
    made = MediaScheduler(num_rows=MAX_CROSS_ROWS, budget=MAX_CROSS_ROWS)
    item = media.MediaInput(content_hash="00", spans=((0, 3),), tensors={})
    made._provide(item)
    assert made.pool.is_pinned("00")
    made.begin_step()
    assert "00" not in made.pool
    assert made.take_loads() == []


POOL_MUTANTS = {
    "a pin is forgotten": ("self._held[key].num_pins += 1", "pass"),
    "an end is not noted": ("self._held[key].num_pins -= 1", "pass"),
    "a load is told twice": ("self._to_load.clear()", "pass"),
    "a load is not told": (" = self._to_load[key] = _Held", " = _Held"),
    "what was dropped is loaded": ("self._to_load.pop(key, None)", "pass"),
    "places are given back twice": (
        "self._places.give(held.places)",
        "self._places.give(held.places); self._places.give(held.places)",
    ),
    "places are given back and kept": ("self._held.pop(key, None)", "self._held.get(key)"),
    "places are not given back": ("self._places.give(held.places)", "pass"),
    "who runs gives way": ("if not held.num_pins]", "]"),
    "nobody gives way": (
        "held in self._held.values() if held.num_pins]",
        "held in self._held.values()]",
    ),
    "there seems to be room": ("self._places.fits(count, pinned)", "True"),
    "a fault, and nothing is loaded again": ("self._to_load[key] = held", "pass"),
    "a fault, and what was loaded seems to be there": (
        "            else:\n                self.drop(key)\n",
        "",
    ),
    "the newest goes first": ("idle.pop(0)", "idle.pop()"),
    "a need makes nothing younger": ("self._held.move_to_end(key)", "pass"),
    "a need without room counts as met": ("if len(places) == len(found) else None", ""),
    "what no plan has taken stays": (
        "        for key in [*self._to_load]:\n            self.drop(key)",
        "        pass",
    ),
}
PLACES_MUTANTS = {
    "the first line is given out": ("free = self._first", "free = 0"),
    "a span reaches over the end": ("self._end - free >= count", "True"),
    "a gap is taken for larger": ("first - free >= count", "first - free >= count - 1"),
    "scattered places are given twice": (
        "self._free[:count], self._free[count:]",
        "self._free[:count], self._free[count - 1 :]",
    ),
}
OTHERS = {
    "who enters does not pin": (placement, "pool.pin(resident.key)", "pass"),
    "who leaves does not unpin": (placement, "pool.unpin(resident.key)", "pass"),
    "adapters are not loaded again": (
        scheduler,
        "self.adapters.pool.after_fault(reload=True)",
        "pass",
    ),
    "automata are not forgotten": (scheduler, "self.automata.after_fault(reload=False)", "pass"),
    "media are not forgotten": (scheduler, "self.media.after_fault()", "pass"),
    "media are not pinned": (media, "self.pool.pin(key)", "pass"),
    "media stay pinned": (media, "            self.pool.unpin(key)\n", "            pass\n"),
    "an adapter that nobody has stays": (adapters, "self.pool.drop(content_hash)", "pass"),
}
TRIED = (
    Case("full", "recompute", "fcfs", 2, num_blocks=30),
    Case("cross", "swap", "priority", 3, num_blocks=12),
)


DIRECT: dict[str, Callable[[], None]] = {
    "the newest goes first": test_scattered_residents_take_what_others_gave_up_wherever_it_is,
    "a need makes nothing younger": test_what_is_needed_again_goes_later,
    "what no plan has taken stays": test_a_step_that_was_not_planned_encodes_nothing,
    "a gap is taken for larger": test_spans_fill_gaps_that_are_large_enough,
}
"""What sees a mistake that few walks meet."""


def walk_all() -> None:
    for number, case in itertools.product(range(30), TRIED):
        walk(case, number, Counter())


@pytest.fixture
def put_mistake(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a mistake into what schedulers are made of."""

    this = sys.modules[__name__]

    def put(name: str) -> None:
        if name in POOL_MUTANTS:
            made = mutated(pool, *POOL_MUTANTS[name])
            for module in (adapters, family, media, this):
                monkeypatch.setattr(module, "DevicePool", made.DevicePool)
            for module in (admission, placement):
                monkeypatch.setattr(module, "provide_all", made.provide_all)
        elif name in PLACES_MUTANTS:
            made = mutated(places, *PLACES_MUTANTS[name])
            for module in (adapters, family, this):
                monkeypatch.setattr(module, "Spans", made.Spans)
            monkeypatch.setattr(media, "Scattered", made.Scattered)
        else:
            origin, old, new = OTHERS[name]
            made = mutated(origin, old, new)
            if origin is scheduler:
                monkeypatch.setattr(scheduling_world, "Scheduler", made.Scheduler)
            for part in ("Placement", "MediaScheduler", "KnownAdapters"):
                if hasattr(made, part) and origin is not scheduler:
                    monkeypatch.setattr(scheduler, part, getattr(made, part))

    return put


@pytest.mark.parametrize("name", [*POOL_MUTANTS, *PLACES_MUTANTS, *OTHERS])
def test_mistakes_are_seen(name: str, put_mistake: Callable[[str], None]) -> None:
    put_mistake(name)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        DIRECT.get(name, walk_all)()
