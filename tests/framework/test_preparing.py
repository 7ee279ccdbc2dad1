"""Requests of one offline call that are made in threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import pytest

from octavo.frontend.preparing import Making, Preparing
from octavo.inputs import PreparedRequest


def making(name: str) -> Making:
    return partial(str, name)  # type: ignore[arg-type]


def test_requests_come_in_the_order_of_their_calls_whichever_is_made_first() -> None:
    second_made = threading.Event()

    def first() -> PreparedRequest:
        assert second_made.wait(60)
        return cast(PreparedRequest, "first")

    def second() -> PreparedRequest:
        second_made.set()
        return cast(PreparedRequest, "second")

    taken: list[Any] = []
    with Preparing([first, second, making("third")], num_threads=2) as requests:
        while len(taken) < requests.count:
            taken += requests.take(60)
        assert requests.take(60) == []
    assert taken == requests.made == ["first", "second", "third"]


def test_without_threads_all_are_there_at_once() -> None:
    with Preparing([making("a"), making("b")], num_threads=0) as requests:
        assert requests.take(0.0) == ["a", "b"]
        assert requests.take(0.0) == []


def test_what_cannot_be_made_tells_who_asks_and_the_rest_is_not_begun() -> None:
    made = []

    def slow() -> PreparedRequest:
        time.sleep(0.05)
        made.append(0)
        return cast(PreparedRequest, "slow")

    def wrong() -> PreparedRequest:
        raise ValueError("wrong")

    calls = [wrong, *[slow] * 100]
    with Preparing(calls, num_threads=2) as requests, pytest.raises(ValueError, match="wrong"):
        requests.take(60)
    num_made = len(made)
    time.sleep(0.2)
    assert len(made) == num_made < 100


def test_ctrl_c_while_calls_are_handed_to_threads_ends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, submitted = ThreadPoolExecutor.submit, []
    go_on, made = threading.Event(), []

    def interrupted(self: ThreadPoolExecutor, call: Making) -> Future[PreparedRequest]:
        if len(submitted) == 5:
            threading.Timer(0.1, go_on.set).start()
            raise KeyboardInterrupt
        submitted.append(submit(self, call))
        return submitted[-1]

    def late() -> PreparedRequest:
        assert go_on.wait(60)
        made.append(0)
        return cast(PreparedRequest, "late")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Preparing([late] * 10, num_threads=1)
    assert len(made) == 1
    assert [future.cancelled() for future in submitted] == [False] + 4 * [True]


def test_each_one_that_is_made_is_told() -> None:
    told, may_end = threading.Semaphore(0), threading.Event()

    def second() -> PreparedRequest:
        assert may_end.wait(60)
        return cast(PreparedRequest, "second")

    with Preparing([making("first"), second], num_threads=2) as requests:
        requests.tell(told.release)
        assert told.acquire(timeout=60)
        assert requests.take(0.0) == ["first"]
        assert not told.acquire(timeout=0.05)
        may_end.set()
        assert told.acquire(timeout=60)
        assert requests.take(0.0) == ["second"]
