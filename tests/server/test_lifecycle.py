"""What is decided when an engine ends or hangs, and when signals come; without processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest

from octavo.config.server import LimitConfig, ServeConfig, ServerConfig
from octavo.errors import EngineDeadError, OctavoError
from octavo.server.processes import lifecycle
from octavo.server.processes.lifecycle import Interrupted, Signals, supervise


@dataclass
class Engine:
    """Ends as often as it is told to; ``restart`` brings the next life."""

    ends: list[str | None]
    seconds_without_progress: float = 0.0
    restart_seconds: float = 0.0
    failure: Exception | None = None
    killed: list[str] = field(default_factory=list)
    num_restarts: int = 0

    @property
    def end(self) -> str | None:
        return self.killed[-1] if self.killed else self.ends[0]

    def kill(self, cause: str) -> None:
        self.killed.append(cause)

    def restart(self) -> None:
        self.num_restarts += 1
        time.sleep(self.restart_seconds)
        if self.failure is not None:
            raise self.failure
        del self.ends[0]


@dataclass
class Http:
    """Runs as many looks as it is told to after it was asked to end."""

    looks_to_drain: int = 0
    looks_to_cut: int = 0
    code: int = 0
    told: list[object] = field(default_factory=list)
    num_checks: int = 0
    looks_left: int | None = None

    @property
    def is_running(self) -> bool:
        assert self.looks_left is not None
        self.looks_left -= 1
        return self.looks_left >= 0

    def check(self) -> None:
        self.num_checks += 1

    def engine_ended(self, cause: str, *, is_last: bool) -> None:
        self.told.append((cause, is_last))

    def engine_started(self) -> None:
        self.told.append("started")

    def drain(self) -> None:
        self.told.append("drain")
        self.looks_left = self.looks_to_drain

    def cut(self) -> None:
        self.told.append("cut")
        self.looks_left = self.looks_to_cut


class After(Signals):
    """A signal comes at each of these looks."""

    def __init__(self, *looks: int) -> None:
        super().__init__()
        self.looks = looks
        self.num_looks = 0

    def wait(self, seconds: float) -> bool:
        self.num_looks += 1
        assert self.num_looks < 1000, "nobody ends it"
        return self.num_looks in self.looks


def config(on_engine_death: str = "exit", **limits: float) -> ServerConfig:
    return ServerConfig(
        serve=ServeConfig(on_engine_death=on_engine_death),  # type: ignore[arg-type]
        limits=LimitConfig(**limits),  # type: ignore[arg-type]
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FAREWELL_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle, "LIVENESS_SECONDS", 0.001)


def test_a_signal_drains_and_what_was_answered_makes_the_code() -> None:
    http = Http(looks_to_drain=3)
    assert supervise(Engine([None]), http, config(), After(4)) == 0
    assert http.told == ["drain"]
    assert http.num_checks == 3 + 3, "what is lost while the others drain is seen to"
    assert supervise(Engine([None]), Http(code=1), config(), After(1)) == 1


@pytest.mark.parametrize(("second", "seconds"), [(True, 300), (False, 0.01), (False, 0)])
def test_a_second_signal_or_the_times_end_cuts_off_what_is_left(second, seconds) -> None:
    http = Http(looks_to_drain=10**9, code=7)
    limits = {"drain_timeout_seconds": seconds}

    class Slow(After):
        def wait(self, seconds: float) -> bool:
            time.sleep(0.001)
            return super().wait(seconds)

    signals = Slow(1, 5) if second else Slow(1)
    assert supervise(Engine([None]), http, config(**limits), signals) == 7
    assert http.told == ["drain", "cut"]


def test_what_cannot_even_be_cut_off_is_not_waited_for() -> None:
    http = Http(looks_to_drain=10**9, looks_to_cut=10**9)
    assert supervise(Engine([None]), http, config(), After(1, 2)) == 1


def test_an_engine_that_ends_is_told_of_and_is_the_servers_end() -> None:
    http = Http()
    with pytest.raises(EngineDeadError, match=r"^it was killed$"):
        supervise(Engine(["it was killed"]), http, config(), After())
    assert http.told == [("it was killed", True), "drain"]


def test_an_engine_is_restarted_once_and_its_second_end_is_the_servers() -> None:
    http, engine = Http(), Engine(["one", "two"])
    with pytest.raises(EngineDeadError, match=r"^two$"):
        supervise(engine, http, config("restart"), After())
    assert http.told == [("one", False), "started", ("two", True), "drain"]
    assert engine.num_restarts == 1


def test_an_engine_that_ends_as_a_signal_comes_is_told_of_too() -> None:
    http = Http()
    with pytest.raises(EngineDeadError):
        supervise(Engine(["gone"]), http, config("restart"), After(1))
    assert http.told == [("gone", True), "drain"]


def test_an_engine_that_cannot_be_restarted_is_the_servers_end() -> None:
    engine = Engine(["one"], failure=OctavoError("no memory"))
    with pytest.raises(EngineDeadError, match=r"^no other engine could be started: no memory$"):
        supervise(engine, Http(), config("restart"), After())


def test_an_engine_that_hangs_is_killed() -> None:
    engine = Engine([None], seconds_without_progress=5.0)
    assert supervise(engine, Http(), config(hang_seconds=3), After(5)) == 0
    assert engine.killed == []
    with pytest.raises(EngineDeadError, match=r"made no step for 4 s \(twice --hang-seconds\)"):
        supervise(engine, Http(), config(hang_seconds=2), After())


def test_an_engine_that_ends_while_the_server_drains_ends_the_wait() -> None:
    engine, http = Engine([None]), Http(looks_to_drain=10**9)

    class KillAtThird(After):
        def wait(self, seconds: float) -> bool:
            time.sleep(0.001)
            if self.num_looks == 3:
                engine.kill("gone")
            return super().wait(seconds)

    with pytest.raises(EngineDeadError, match=r"^gone$"):
        supervise(engine, http, config(), KillAtThird(1))
    assert http.told == ["drain", ("gone", True), "cut"]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_an_engine_restarts_is_not_kept_waiting(number) -> None:
    http, engine = Http(), Engine(["one"], restart_seconds=30)
    began = time.monotonic()
    with Signals() as signals:
        threading.Timer(0.1, send, (number,)).start()
        assert supervise(engine, http, config("restart"), signals) == 0
    assert time.monotonic() - began < 10
    assert http.told == [("one", False), ("one", True), "drain"]


def test_a_signal_interrupts_once_is_noted_after_and_seen_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned: list[bool] = []

    def start(signals: Signals) -> None:
        with signals.interrupting():
            try:
                send(signal.SIGTERM)
                time.sleep(10)
            finally:
                send(signal.SIGTERM)
                cleaned.append(True)

    with Signals() as signals:
        with pytest.raises(Interrupted):
            start(signals)
        assert cleaned
        send(signal.SIGINT)
        assert [signals.wait(0) for _ in range(4)] == [True, True, True, False]
    assert signal.getsignal(signal.SIGTERM) == before
