"""Who enters next where some wait for rank rows or words of the device."""

from __future__ import annotations

import pytest

from automaton_guides import END, GO, automaton
from octavo.guided.byte_automaton import ByteAutomatonGuide
from octavo.guided.sequence import CompiledGuide
from octavo.messages import AdapterHead, EngineRequest, PackedAdapter, TokenSampling
from octavo.residency.adapters import KnownAdapters
from octavo.scheduling import admission
from octavo.scheduling.family import automaton_pool, guide_family
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.waiting import WaitingQueue
from octavo_registry.guided import GuideVocabulary

AUTOMATA = {name: automaton([{name: (GO, 0), END: (GO, 0)}]) for name in "wx"}
WORDS = GuideVocabulary(
    token_bytes=[b"a", None], special_ids={}, stop_token_ids=(1,), vocab_size=2, encode=list
)


class Line:
    """A pool of four rank rows, and a queue; "a" and "b" need all of them, "c" and "d" half.

    Of the pool of automata "w" and "x" need all, and so does "aw", which needs all rank rows too.
    """

    def __init__(self, *names: str) -> None:
        self.known = KnownAdapters(4, 4)
        self.pool = self.known.pool
        self.waiting = WaitingQueue(by_priority=False)
        self.entered: dict[int, Sequence] = {}
        self.automata = automaton_pool(4 + 68 + 3 * 2 + 2)
        self.admission = admission.Admission(self.waiting)
        for name, rank in {"a": 4, "b": 4, "c": 2, "d": 2}.items():
            head = AdapterHead(content_hash=name, rank=rank, dtype="float32", shapes={})
            self.known.add(PackedAdapter(head, memoryview(b"")))
        for number, name in enumerate(names):
            self.push(name, number)

    def push(self, name: str, number: int) -> None:
        request = EngineRequest(
            request_id=str(number),
            sequences=(number,),
            prompt_token_ids=[1],
            sampling=TokenSampling(seed=0, max_tokens=1),
            adapter=name.strip("wx"),
        )
        sequence = Sequence(request, 0, number, b"", self.known.needs(request.adapter))
        if name[-1:] in ("w", "x"):
            guide = ByteAutomatonGuide(AUTOMATA[name[-1]], WORDS)
            assert guide_family([sequence], CompiledGuide(guide), 1, self.automata) is None
        self.waiting.push(sequence)

    def enter_one(self) -> int | None:
        """The number of the one that enters now."""
        sequence = self.admission.next()
        if sequence is None:
            return None
        self.waiting.remove(sequence)
        for pool, resident in sequence.needs:
            pool.pin(resident.key)
        self.entered[sequence.id] = sequence
        return sequence.id

    def leave(self, number: int) -> None:
        """The sequence of that number runs no more."""
        sequence = self.entered.pop(number)
        for pool, resident in sequence.needs:
            pool.unpin(resident.key)

    def enter_all(self) -> list[int]:
        """The numbers of those that enter now, in their order."""
        entered = []
        while (number := self.enter_one()) is not None:
            entered.append(number)
        return entered


def test_those_that_need_no_rows_pass_and_then_the_first_come_is_first() -> None:
    line = Line("a", "b", "", "a", "b")
    assert line.enter_all() == [0, 2, 3]
    line.pool.unpin("a")
    assert line.enter_all() == []
    line.pool.unpin("a")
    assert line.enter_all() == [1, 4]


def test_an_adapter_that_runs_keeps_others_waiting_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_PASSES", 2)
    line = Line("a", "b", "a", "a", "a", "")
    assert line.enter_all() == [0, 2, 3, 5]
    for _ in range(3):
        line.pool.unpin("a")
    assert line.enter_all() == [1]
    line.pool.unpin("b")
    assert line.enter_all() == [4]


def test_who_has_come_first_is_not_set_aside_for_one_that_was() -> None:
    line = Line("a", "c")
    assert line.enter_all() == [0]
    line.pool.unpin("a")
    line.push("d", number=0)  # preempted, say: before the second, which was set aside
    assert line.enter_all() == [0, 1]


def test_one_that_comes_back_while_its_old_place_aside_is_not_cleared_enters_once() -> None:
    line = Line("a", "b")
    assert line.enter_all() == [0]
    sequence = line.waiting.peek_aside()
    assert sequence is not None
    for _ in range(2):  # it runs alone behind a step that raised, and is preempted
        line.waiting.remove(sequence)
        line.waiting.push(sequence)
        assert line.enter_all() == []
    line.pool.unpin("a")
    assert line.enter_all() == [1]


def test_one_whose_rank_rows_are_there_waits_among_the_others_again() -> None:
    line = Line("a", "b")
    assert line.enter_all() == [0]
    assert line.waiting.peek() is None
    line.pool.unpin("a")
    sequence = line.admission.next()  # and has no room yet: it is asked for in each step
    assert line.waiting.peek() is sequence
    assert line.enter_all() == [1]


def test_who_is_offered_again_and_again_without_room_passes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_PASSES", 2)
    line = Line("a", "b", "a", "a")
    assert line.enter_one() == 0
    for _ in range(5):
        sequence = line.admission.next()
        assert sequence is not None
        assert sequence.id == 2
    assert line.enter_all() == [2, 3]


def test_those_that_need_no_words_pass_those_that_wait_for_them() -> None:
    line = Line("w", "x", "", "a", "w", "x")
    assert line.enter_all() == [0, 2, 3, 4]
    line.leave(0)
    assert line.enter_all() == []
    line.leave(4)
    assert line.enter_all() == [1, 5]


def test_an_automaton_that_runs_keeps_others_waiting_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MOST_PASSES", 2)
    line = Line("w", "x", "w", "w", "w", "")
    assert line.enter_all() == [0, 2, 3, 5]
    for number in (0, 2, 3):
        line.leave(number)
    assert line.enter_all() == [1]
    line.leave(1)
    assert line.enter_all() == [4]


def test_who_waits_for_rank_rows_does_not_hold_up_others_automata_nor_the_other_way_round() -> None:
    line = Line("a", "b", "w", "aw", "aw")
    assert line.enter_all() == [0, 2, 3, 4]
    line = Line("w", "x", "a", "aw")
    assert line.enter_all() == [0, 2, 3]


def test_who_needs_both_waits_for_both() -> None:
    line = Line("w", "b", "ax")
    assert line.enter_all() == [0, 1]
    line.leave(0)
    assert line.enter_all() == []
    line.leave(1)
    assert line.enter_all() == [2]
