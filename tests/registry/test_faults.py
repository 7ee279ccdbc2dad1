from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from octavo_registry import OctavoError, PluginError, PluginFailure
from octavo_registry.faults import Faults, PluginQuarantinedError, PluginUse, one_line


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(faults: Faults, *, request: bool = False, plugin: str = "p") -> None:
    with pytest.raises(PluginError), faults.guard(plugin, "call", request=request):
        raise KeyError("boom")


def test_a_failure_is_counted_announced_and_attributed(clock) -> None:
    told: list[PluginFailure] = []
    faults = Faults(announce=told.append, clock=clock)
    with pytest.raises(PluginError) as error, faults.guard("p", "call", request=True):
        raise KeyError("bo\nom")
    assert str(error.value) == "plugin 'p' failed in call: KeyError: 'bo\\nom'"
    assert isinstance(error.value.__cause__, KeyError)
    assert faults.counts == {("p", "call"): 1}
    assert told == [
        PluginFailure(
            plugin="p", call="call", error="KeyError: 'bo\\nom'", count=1, quarantined=False
        )
    ]


def test_a_plugin_that_fails_by_itself_is_refused_for_thirty_seconds(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    clock.now += 29.0
    refused = pytest.raises(PluginQuarantinedError, match=r"'p' is paused for another 1 s.*KeyErr")
    with refused, faults.guard("p", "other call"):
        pytest.fail("a refused call must not run")
    assert faults.quarantined == {"p": 1.0}
    with faults.guard("q", "call"):
        pass


def test_one_success_after_the_pause_ends_the_quarantine(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    clock.now += 30.0
    with faults.guard("p", "call"):
        pass
    assert faults.quarantined == {}
    with faults.guard("p", "call"):
        pass


def test_a_failing_trial_starts_a_new_pause(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    clock.now += 30.0
    fail(faults)
    clock.now += 29.0
    with pytest.raises(PluginQuarantinedError), faults.guard("p", "call"):
        pass
    assert faults.counts == {("p", "call"): 2}


def test_only_one_trial_runs_at_a_time(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    clock.now += 30.0
    trial = faults.guard("p", "call")
    with trial, pytest.raises(PluginQuarantinedError), faults.guard("p", "call"):
        pass


def test_a_failure_on_a_requests_data_never_quarantines(clock) -> None:
    faults = Faults(clock=clock)
    for _ in range(10):
        fail(faults, request=True)
    assert faults.counts == {("p", "call"): 10}
    assert faults.quarantined == {}


def test_a_quarantined_plugin_still_serves_requests(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    with faults.guard("p", "call", request=True):
        pass
    assert "p" in faults.quarantined


def test_refusing_a_requests_data_is_no_failure(clock) -> None:
    faults = Faults(clock=clock)
    with pytest.raises(OctavoError, match="keyword 'x'"), faults.guard("p", "c", request=True):
        raise OctavoError("keyword 'x' is not supported")
    assert faults.counts == {}


def test_a_plugin_whose_model_is_in_use_is_counted_but_never_quarantined(clock) -> None:
    faults = Faults(clock=clock)
    fail(faults)
    faults.protect("p")
    assert faults.quarantined == {}
    fail(faults)
    assert faults.quarantined == {}
    assert faults.counts == {("p", "call"): 2}


def test_calls_failures_and_time_are_kept_by_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("octavo_registry.faults.time.perf_counter", lambda: now[0])
    faults = Faults()
    for seconds in (1.0, 2.0):
        with faults.guard("p", "call", request=True):
            now[0] += seconds
    fail(faults, request=True)
    now[0] += 4.0  # between calls: nobody's time
    with pytest.raises(OctavoError), faults.guard("p", "other", request=True):
        raise OctavoError("the request is wrong")
    fail(faults, plugin="q")
    uses = faults.uses
    assert uses["p"] == PluginUse(calls=4, failures=1, seconds=3.0)
    assert uses["q"] == PluginUse(calls=1, failures=1, seconds=0.0)
    with pytest.raises(PluginQuarantinedError), faults.guard("q", "call"):
        pass
    assert faults.uses["q"].calls == 1
    assert uses is not faults.uses


def test_a_message_is_one_line_without_objects() -> None:
    error = ValueError(f"no image\nin {object()!r}, damaged at 0x1F")
    assert one_line(error) == "ValueError: no image, damaged at 0x1F"
    for shown in (BytesIO(), one_line, error.__str__, iter([]), lambda: None):
        assert one_line(ValueError(f"cannot read {shown!r}: bad")) == "ValueError: cannot read: bad"
    with Path(__file__).open("rb") as file:
        assert one_line(ValueError(f"cannot read {file!r}")) == "ValueError: cannot read"
    for text in ("a < b and c > d at 0x1F", "<b>bold</b>", "no <token> at 5"):
        assert one_line(ValueError(text)) == f"ValueError: {text}"
