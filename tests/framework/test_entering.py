"""Who enters next where some wait for their adapters' rank rows."""

from __future__ import annotations

import pytest

from octavo.adapters.pool import AdapterPool
from octavo.engine.messages import AdapterHead, EngineRequest, PackedAdapter, TokenSampling
from octavo.scheduling import entering
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.waiting import WaitingQueue


class Line:
    """A pool of four rank rows, and a queue in which adapters have all of them."""

    def __init__(self, *names: str) -> None:
        self.pool = AdapterPool(4, 4)
        self.waiting = WaitingQueue(by_priority=False)
        self.entering = entering.Entering(self.waiting, self.pool)
        for name in dict.fromkeys("ab"):
            head = AdapterHead(content_hash=name, rank=4, dtype="float32", shapes={})
            self.pool.add(PackedAdapter(head, memoryview(b"")))
        for number, name in enumerate(names):
            request = EngineRequest(
                request_id=str(number),
                sequences=(number,),
                prompt_token_ids=[1],
                sampling=TokenSampling(seed=0, max_tokens=1),
                adapter=name,
            )
            self.waiting.push(Sequence(request, 0, number, b""))

    def enter_all(self) -> list[int]:
        """The numbers of those that enter now, in their order."""
        entered = []
        while (sequence := self.entering.next()) is not None:
            self.waiting.remove(sequence)
            self.pool.pin(sequence.request.adapter)
            entered.append(sequence.id)
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
    monkeypatch.setattr(entering, "MOST_PASSES", 2)
    line = Line("a", "b", "a", "a", "a", "")
    assert line.enter_all() == [0, 2, 3, 5]
    for _ in range(3):
        line.pool.unpin("a")
    assert line.enter_all() == [1]
    line.pool.unpin("b")
    assert line.enter_all() == [4]
