"""Which byte automata the device holds, and where: the scheduler's side of the pool.

Steps run in order, so that words may be given to another automaton as soon as the step that used
them last is planned. What is loaded stays until its words are needed; of those that no running
sequence uses, the one used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from octavo.errors import UnsupportedConstraint
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.residency.spans import Span, Spans
from octavo.steps.loads import POOL_WORDS, AutomatonLoad

LINE_WORDS: Final = 4
"""An automaton begins at a multiple of these."""
NO_AUTOMATON: Final = 0
"""Where the automaton of a row begins that has none: the first line is nobody's."""


@dataclass(slots=True)
class _Held:
    guide: ByteAutomatonGuide
    span: Span
    """Lines that it takes."""
    num_running: int = 0

    @property
    def load(self) -> AutomatonLoad:
        return AutomatonLoad(self.span[0] * LINE_WORDS, self.guide.words, self.guide.vocabulary)


class AutomatonPool:
    """The automata on the device, least recently used first; equal ones are one."""

    def __init__(self, num_words: int = POOL_WORDS) -> None:
        self.num_loads = 0
        self._num_words = num_words
        self._lines = Spans(num_words // LINE_WORDS)
        self._lines.take(1)
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._loads: dict[bytes, AutomatonLoad] = {}
        """What the next plan copies."""

    def refusal(self, guide: ByteAutomatonGuide) -> UnsupportedConstraint | None:
        """Why no sequence with this guide can ever run; None where it can."""
        num_words = len(guide.words)
        if num_words + LINE_WORDS <= self._num_words:
            return None
        return UnsupportedConstraint(
            f"the constraint makes an automaton of {num_words} words; the engine has room for "
            f"{self._num_words - LINE_WORDS}"
        )

    def provide(self, guide: ByteAutomatonGuide | None) -> int | None:
        """Have an automaton on the device when the next planned step runs: its first word.

        None: not now.
        """
        if guide is None:
            return NO_AUTOMATON
        held = self._held.get(guide.digest)
        if held is None:
            span = self._take(-(-len(guide.words) // LINE_WORDS))
            if span is None:
                return None
            held = self._held[guide.digest] = _Held(guide, span)
            self._loads[guide.digest] = held.load
        self._held.move_to_end(guide.digest)
        return held.load.first

    def is_running(self, guide: ByteAutomatonGuide | None) -> bool:
        """Whether a running sequence uses it: one more needs no words."""
        held = None if guide is None else self._held.get(guide.digest)
        return held is not None and held.num_running > 0

    def pin(self, guide: ByteAutomatonGuide | None) -> None:
        """A sequence runs with it: it stays where it is."""
        if guide is not None:
            self._held[guide.digest].num_running += 1

    def unpin(self, guide: ByteAutomatonGuide | None) -> None:
        """A sequence runs no more."""
        if guide is not None:
            self._held[guide.digest].num_running -= 1

    def take_loads(self) -> list[AutomatonLoad]:
        """Hand what is to be copied to a plan."""
        loads, self._loads = self._loads, {}
        self.num_loads += len(loads)
        return list(loads.values())

    def forget_all(self) -> None:
        """A step has raised, and nobody knows what it has copied; no sequence runs.

        Each automaton is copied again for those that need it, and fails none but them.
        """
        for held in self._held.values():
            self._lines.give(held.span)
        self._held.clear()
        self._loads.clear()

    def stats(self) -> dict[str, int]:
        """Counts, now or since the start."""
        return {"num_device_automata": len(self._held), "num_automaton_loads": self.num_loads}

    def _take(self, num_lines: int) -> Span | None:
        idle = [digest for digest, held in self._held.items() if not held.num_running]
        pinned = sorted(held.span for held in self._held.values() if held.num_running)
        if self._lines.gap_for(num_lines, [(0, 1), *pinned]) is None:
            return None  # to evict the idle would not help
        while (first := self._lines.take(num_lines)) is None:
            digest = idle.pop(0)
            self._lines.give(self._held.pop(digest).span)
            self._loads.pop(digest, None)
        return first, num_lines
