"""What lies on the device for requests, and where: the scheduler's side of a pool.

Steps run in order, so that places may be given to another resident as soon as the step that used
them last is planned. What is loaded stays until its places are needed; of those that nobody has
pinned, the one that was needed longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from octavo.residency.places import P, Places
from octavo.steps.loads import Span

R = TypeVar("R")


class Resident(NamedTuple, Generic[R]):
    """An adapter, an automaton, a media item."""

    key: Hashable
    """Equal ones are one resident."""
    size: int
    """How many places it takes."""
    item: R


@dataclass(slots=True)
class _Held(Generic[R, P]):
    resident: Resident[R]
    places: P
    num_pins: int = 0


class DevicePool(Generic[R, P]):
    """The residents of one kind, least recently needed first."""

    def __init__(self, name: str, places: Places[P]) -> None:
        """``name`` is the kind's, and in ``Sequence.places`` of what it lies at."""
        self.name = name
        self.num_loads = 0
        self._places = places
        self._held: OrderedDict[Hashable, _Held[R, P]] = OrderedDict()
        self._to_load: dict[Hashable, _Held[R, P]] = {}
        """What the next plan loads."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    @property
    def num_places(self) -> int:
        """How many there are for residents, free or not."""
        return self._places.num_places

    def provide(self, resident: Resident[R]) -> P | None:
        """Have it on the device when the next planned step runs; None: there is no room now."""
        key = resident.key
        held = self._held.get(key)
        if held is None:
            places = self._take(resident.size)
            if places is None:
                return None
            held = self._held[key] = self._to_load[key] = _Held(resident, places)
        self._held.move_to_end(key)
        return held.places

    def places_of(self, key: Hashable) -> P:
        """Where a resident lies."""
        return self._held[key].places

    def pin(self, key: Hashable) -> None:
        """Somebody uses it: it stays where it is until unpinned as often."""
        self._held[key].num_pins += 1

    def unpin(self, key: Hashable) -> None:
        """Somebody uses it no more."""
        self._held[key].num_pins -= 1

    def is_pinned(self, key: Hashable) -> bool:
        """Whether somebody uses it: one more needs no places."""
        held = self._held.get(key)
        return held is not None and held.num_pins > 0

    def drop(self, key: Hashable) -> None:
        """Give up its places, if it has any; nobody uses it."""
        held = self._held.pop(key, None)
        if held is not None:
            self._places.give(held.places)
            self._to_load.pop(key, None)

    def take_loads(self) -> list[tuple[P, R]]:
        """Hand what is to be loaded to a plan, and where to."""
        loads = [(held.places, held.resident.item) for held in self._to_load.values()]
        self._to_load.clear()
        self.num_loads += len(loads)
        return loads

    def drop_loads(self) -> None:
        """Drop what no plan has taken."""
        for key in [*self._to_load]:
            self.drop(key)

    def after_fault(self, *, reload: bool) -> None:
        """A step has raised: nobody knows what it has loaded, and nobody uses anything.

        ``reload`` everything with the next plan. Else each is loaded anew for those that need it,
        so that one that cannot be loaded fails none but them.
        """
        for key, held in [*self._held.items()]:
            held.num_pins = 0
            if reload:
                self._to_load[key] = held
            else:
                self.drop(key)

    def _take(self, count: int) -> P | None:
        places = self._places.take(count)
        if places is not None:
            return places
        pinned = [held.places for held in self._held.values() if held.num_pins]
        if not self._places.fits(count, pinned):
            return None  # to drop the idle would not help
        idle = [key for key, held in self._held.items() if not held.num_pins]
        while places is None:
            self.drop(idle.pop(0))
            places = self._places.take(count)
        return places


class Need(NamedTuple):
    """What a sequence needs on the device to run."""

    pool: DevicePool[Any, Span]
    resident: Resident[Any]


def provide_all(needs: Iterable[Need]) -> dict[str, Span] | None:
    """Have all of them on the device, or as many as there is room for; returns where, by pool.

    None: one has no room now.
    """
    found = {pool.name: pool.provide(resident) for pool, resident in needs}
    places = {name: span for name, span in found.items() if span is not None}
    return places if len(places) == len(found) else None
