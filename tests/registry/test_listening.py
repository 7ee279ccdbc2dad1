"""Plugins hear of events in threads of their own: none holds whoever tells, or another plugin."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_registry import PluginError, PluginHost, hookimpl
from octavo_registry.hooks import listening


def host_of(**heard: Any) -> PluginHost:
    """A plugin of each name, which hears of the end of requests so."""
    host = PluginHost()
    for name, function in heard.items():
        hooks = {"request_finished": hookimpl(function)}
        host.register(SimpleNamespace(__name__=name, OCTAVO_API="1", **hooks))
    return host


def test_one_that_sleeps_holds_neither_the_teller_nor_others() -> None:
    may_go_on, slept, heard = threading.Event(), [], []

    def sleeps(outcome: Any) -> None:
        assert may_go_on.wait(30)
        slept.append(outcome)

    host = host_of(sleeps=sleeps, hears=lambda outcome: heard.append(outcome))
    for number in range(300):
        host.notify("request_finished", outcome=number)
    assert host._listeners["hears"].settle(30)
    assert heard == list(range(300))
    assert slept == []
    assert not host.settle_events(0.01)
    may_go_on.set()
    assert host.settle_events(30)
    assert slept == list(range(300))


def test_what_a_plugin_is_too_slow_for_is_dropped_counted_and_told(monkeypatch, caplog) -> None:
    monkeypatch.setattr(listening, "MAX_WAITING", 4)
    begun, may_go_on, heard = threading.Event(), threading.Event(), []

    def sleeps(outcome: Any) -> None:
        begun.set()
        assert may_go_on.wait(30)
        heard.append(outcome)

    host = host_of(sleeps=sleeps)
    host.notify("request_finished", outcome=0)
    assert begun.wait(30)
    for number in range(1, 11):
        host.notify("request_finished", outcome=number)
    assert host.faults.uses["sleeps"].dropped_events == 6
    assert [record.args for record in caplog.records] == [("sleeps", 4, n) for n in (1, 2, 4)]
    may_go_on.set()
    assert host.settle_events(30)
    assert heard == [0, 1, 2, 3, 4]


def test_an_idle_thread_ends_and_the_next_event_is_heard(monkeypatch) -> None:
    monkeypatch.setattr(listening, "IDLE_SECONDS", 0.01)
    threads: list[threading.Thread] = []
    host = host_of(hears=lambda outcome: threads.append(threading.current_thread()))
    for number in range(1, 3):
        host.notify("request_finished", outcome=number)
        assert host.settle_events(30)
        threads[-1].join(30)
        assert len(threads) == number
    assert threads[0] is not threads[1]


def test_a_wrapper_around_an_event_is_refused() -> None:
    def wraps(outcome: Any) -> Any:
        yield

    hooks = {"request_finished": hookimpl(wrapper=True)(wraps)}
    with pytest.raises(PluginError, match=r"'wraps' .*request_finished must not be a wrapper"):
        PluginHost().register(SimpleNamespace(__name__="wraps", OCTAVO_API="1", **hooks))
