"""Constraints of strangers end in a child, not in the server: bombs, deaths and what remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from octavo import GuidedParams
from octavo.errors import (
    BadRequestError,
    ParameterError,
    QueueFullError,
    RequestFailedError,
    UnsupportedConstraint,
)
from octavo.guided import checking
from octavo.guided.checking import Checked, GuideChecker
from octavo.guided.choose import asked_guide
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from server_faults import until

BACKEND = """
import os, signal, time
from octavo_registry import hookimpl

OCTAVO_API = "1"

@hookimpl
def register_guided_backends(backends):
    backends.add("mortal", "mortal:Backend", keywords=("grammar",), rank=300)

class Backend:
    def __init__(self, vocabulary): pass
    def compile(self, constraint):
        match constraint.value:
            case value if value.startswith("burn"):
                while True: pass
            case "eat": bytearray(2**30)
            case "exit": os._exit(0)
            case "die": os.kill(os.getpid(), signal.SIGKILL)
            case "sleep": time.sleep(600)
            case value if value.startswith("wait"): time.sleep(1)
            case "raise": raise RuntimeError("no more")
            case "print": print("hello, parent", flush=True)
        return self
    def start(self): return self
    def forced(self): return []
    def fill_bitmask(self, row): row[:] = 1
"""
REGEX = GuidedParams(regex="[ab]+")
WAITING = [f"wait {number}" for number in range(checking.MOST_CHILDREN)]


def grammar(value: str) -> GuidedParams:
    return GuidedParams(grammar=value, backend="mortal", origin="guided_grammar")


@pytest.fixture
def checker(tmp_path, monkeypatch):
    (tmp_path / "mortal.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    checker = GuideChecker(PluginHost.discover(plugins=["mortal"]).manifest(), vocabulary)
    yield checker
    checker.close()
    sys.modules.pop("mortal", None)


def children() -> set[int]:
    """Processes of this one that compile constraints and have not ended."""
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and stat[0] != "Z" and "octavo.guided.child" in command:
            found.add(pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_constraint_that_compiles_is_what_the_engine_is_asked_for(checker) -> None:
    request = checker.check(REGEX)
    assert (request.backend, request.kind, request.value) == ("llguidance", "regex", '"[ab]+"')
    forced = checker.check(GuidedParams(choice=["yes"]))  # all of its text is without a choice
    assert forced.value == '["yes"]'


def test_a_constraint_that_is_known_costs_no_child(checker) -> None:
    request = checker.check(REGEX)
    with pytest.raises(UnsupportedConstraint):
        checker.check(grammar("raise"))
    checker.close()
    assert children() == set()
    assert checker.check(GuidedParams(regex="[ab]+", origin="other")) is request
    with pytest.raises(RequestFailedError, match="the engine is closed"):
        checker.check(GuidedParams(regex="[cd]+"))
    with pytest.raises(UnsupportedConstraint, match="no more") as caught:
        checker.check(grammar("raise"))
    assert caught.value.param == "guided_grammar"
    assert children() == set()


def working(child: int) -> set[int]:
    """Processes that the child has begun and that have not ended."""
    try:
        listed = Path(f"/proc/{child}/task/{child}/children").read_text()
    except OSError:
        return set()
    return {pid for pid in map(int, listed.split()) if alive(pid)}


@pytest.mark.parametrize(
    "value", ["exit", "die", "eat", pytest.param("burn", marks=pytest.mark.slow)]
)
def test_what_a_constraint_ends_is_a_process_of_its_own(checker, value) -> None:
    checker.check(REGEX)
    before = children()
    began = time.monotonic()
    what = "too large to compile" if value == "burn" else "could not be compiled: its process ended"
    with pytest.raises(UnsupportedConstraint, match=what) as caught:
        checker.check(grammar(value))
    assert time.monotonic() - began < checking.WALL_SECONDS + 10
    assert caught.value.param == "guided_grammar"
    assert checker.check(GuidedParams(regex="[cd]+")).kind == "regex"
    assert before <= children()
    until(lambda: all(len(working(child)) <= 1 for child in children()))


def test_a_constraint_that_hangs_is_ended_at_its_deadline(checker, monkeypatch) -> None:
    monkeypatch.setattr(checking, "FIRST_WALL_SECONDS", 0.2)
    monkeypatch.setattr(checking, "WALL_SECONDS", 0.5)
    with pytest.raises(UnsupportedConstraint, match="too large to compile: it was given up"):
        checker.check(grammar("sleep"))
    until(lambda: all(len(working(child)) <= 1 for child in children()))


def test_a_child_that_dies_at_work_is_replaced(checker) -> None:
    checker.check(grammar("loaded"))
    (child,) = children()
    until(lambda: len(working(child)) == 1)
    with ThreadPoolExecutor(1) as thread:
        busy = thread.submit(checker.check, grammar("sleep"))
        until(lambda: not checker._pool._idle)
        for each in children():
            os.killpg(each, signal.SIGKILL)  # with its copies
        with pytest.raises(UnsupportedConstraint, match="its process ended with status -9"):
            busy.result()
    assert checker.check(GuidedParams(regex="[cd]+")).kind == "regex"
    assert child not in children()


@pytest.mark.slow
def test_constraints_that_take_long_keep_others_waiting_for_their_first_try_alone(
    checker, monkeypatch
) -> None:
    monkeypatch.setattr(checking, "CPU_SECONDS", 0.3)
    checker.check(REGEX)
    with ThreadPoolExecutor(12) as threads:
        burning = [threads.submit(checker.check, grammar(f"burn {n}")) for n in range(12)]
        until(lambda: any(each.long for each in list(checker._under_way.values())))
        began = time.monotonic()
        for number in range(5):
            checker.check(GuidedParams(regex=f"[cd]{{{number + 1}}}"))
        assert time.monotonic() - began < 10
        assert not all(each.done() for each in burning)
        for each in burning:
            with pytest.raises(UnsupportedConstraint, match="too large to compile"):
                each.result()
    until(lambda: all(len(working(child)) <= 1 for child in children()))


@pytest.mark.slow
def test_a_constraint_that_takes_long_is_refused_where_others_like_it_wait(
    checker, monkeypatch
) -> None:
    checker.check(grammar("a"))
    monkeypatch.setattr(checking, "CPU_SECONDS", 0.5)
    monkeypatch.setattr(checking, "LONG_WAIT_SECONDS", 0.1)
    with ThreadPoolExecutor(4) as threads:
        burning = [threads.submit(checker.check, grammar(f"burn {n}")) for n in range(4)]
        errors = [str(each.exception()) for each in burning]
    waited = [error for error in errors if "while others like it wait" in error]
    assert 0 < len(waited) < 4
    assert len(checker._known) <= 1 + 4 - len(waited)  # with more time it may be compiled


def test_a_child_that_died_between_constraints_is_replaced(checker) -> None:
    checker.check(REGEX)
    (child,) = children()
    os.kill(child, signal.SIGKILL)
    until(lambda: not alive(child))
    assert checker.check(GuidedParams(regex="[cd]+")).kind == "regex"
    assert child not in children()


def test_a_backend_that_raises_ends_no_child(checker) -> None:
    checker.check(REGEX)
    before = children()
    for _ in range(2):
        with pytest.raises(UnsupportedConstraint, match="RuntimeError: no more"):
            checker.check(grammar("raise"))
    assert children() == before


def test_what_a_plugin_prints_is_no_answer(checker) -> None:
    assert checker.check(grammar("print")).value == '"print"'
    assert checker.check(REGEX).kind == "regex"


def test_constraints_are_refused_when_too_many_wait_and_equal_ones_are_compiled_once(
    checker, monkeypatch
) -> None:
    checker.check(REGEX)
    monkeypatch.setattr(checking, "MOST_WAITING", 1)
    with ThreadPoolExecutor(3) as threads:
        busy = [threads.submit(checker.check, grammar("wait")) for _ in range(3)]
        until(lambda: checker._under_way)
        with pytest.raises(QueueFullError, match="try later"):
            checker.check(GuidedParams(regex="[cd]+"))
        assert checker.check(REGEX).kind == "regex"  # known: waits for nobody
        first, *others = [each.result() for each in busy]
    assert all(other is first for other in others)
    assert checker.check(GuidedParams(regex="[cd]+")).kind == "regex"


def test_a_constraint_that_finds_no_place_in_time_is_refused_and_not_compiled(
    checker, monkeypatch
) -> None:
    checker.check(REGEX)
    num_places = checker._threads._max_workers

    def num_begun() -> int:
        return sum(work.first.running() for work in [*checker._under_way.values()])

    with ThreadPoolExecutor(num_places) as threads:
        # What has been begun is waited for to its end.
        busy = [threads.submit(checker.check, grammar(name)) for name in WAITING[:num_places]]
        until(lambda: num_begun() == num_places)
        monkeypatch.setattr(checking, "WAIT_SECONDS", 0.1)
        with pytest.raises(QueueFullError, match=r"no place .* try later"):
            checker.check(GuidedParams(regex="[cd]+"))
        assert [each.result().kind for each in busy] == ["grammar"] * num_places
    assert checker._under_way == {}


def test_who_waits_no_longer_takes_nothing_from_others_of_the_same_constraint(
    checker, monkeypatch
) -> None:
    gate, known = threading.Event(), Checked(error="compiled")
    waits: list[float] = []

    def noted(works, seconds):
        waits.append(seconds)
        return wait(works, seconds)

    def compile_(asked):
        assert gate.wait(60)
        checker._remember(asked, known)
        return known

    def outcome(pattern: str) -> Checked:
        return checker._outcome(asked_guide(GuidedParams(regex=pattern)))

    monkeypatch.setattr(checker, "_compile_first", compile_)
    monkeypatch.setattr(checking, "wait", noted)
    num_places = checker._threads._max_workers
    with ThreadPoolExecutor(num_places + 1) as threads:
        busy = [threads.submit(outcome, f"{number}+") for number in range(num_places)]
        until(lambda: len(checker._under_way) == num_places)
        patient = threads.submit(outcome, "same")
        until(lambda: len(waits) == num_places + 1)
        monkeypatch.setattr(checking, "WAIT_SECONDS", 0.1)
        with pytest.raises(QueueFullError, match=r"no place .* try later"):
            outcome("same")
        gate.set()
        assert {each.result() for each in (patient, *busy)} == {known}
    assert checker._under_way == {}


def test_an_outcome_is_remembered_once(checker) -> None:
    asked = asked_guide(REGEX)
    for _ in range(2):
        checker._remember(asked, Checked())
    assert checker._num_chars == checking.ENTRY_CHARS + len(asked.value)


def test_children_end_with_close_and_again_closing_does_nothing(checker) -> None:
    checker.check(REGEX)
    (child,) = children()
    checker.close()
    assert not alive(child)
    checker.close()


PARENT = """
import sys, time
from octavo import GuidedParams
from octavo.guided.checking import GuideChecker
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost

checker = GuideChecker(PluginHost.discover().manifest(), vocabulary)
checker.check(GuidedParams(regex="a"))
print(checker._pool._idle[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
def test_children_end_with_their_parent(how) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        if how is not None:
            parent.send_signal(how)
        parent.stdin.close()
        parent.wait()
        until(lambda: not alive(child))


REFUSED = {
    "alternatives in alternatives": {
        "json": {
            "allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(8)]} for i in range(12)]
        }
    },
    "a deep schema": {"json": '{"anyOf":[' * 200 + "{}" + "]}" * 200},
    "a deep text": {"json": "[" * 100_000},
    "a large multiple": {"json": {"type": "integer", "multipleOf": 999_999_937}},
    "a pattern and a length": {
        "json": {"type": "string", "pattern": "^(a|aa|aaa){1,5000}b$", "minLength": 4000}
    },
    "an open regex": {"regex": "(" * 50_000},
    "a long regex": {"regex": "a" * (2**20 + 1)},
    "many choices": {"choice": [str(each) for each in range(10_001)]},
    "an open grammar": {"grammar": "root ::= " + "(" * 100_000},
}  # fmt: skip
HARD = {
    "a grammar of many runs": {
        "grammar": "root ::= " + " | ".join(f'"a{each}" [a-z]+' for each in range(20_000))
    },
    "a regex of repeated repeats": {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
    "a regex of two ends": {"regex": "(.*a.{40}b.*c.{40}d)"},
    "5,000 properties": {
        "json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}}
    },
    "10,000 values": {"json": {"enum": [f"value {i}" for i in range(10_000)]}},
    "10,000 choices": {"choice": [f"value {i}" for i in range(10_000)]},
    "an ambiguous grammar": {"grammar": 'start: a\na: a a a a | "x" | '},
    "a grammar of repeated repeats": {"grammar": 'root ::= (("a"{1,1000}){1,1000}){1,1000}'},
}


def error_of(call) -> BadRequestError | None:
    try:
        call()
    except BadRequestError as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [*REFUSED, *HARD])
def test_a_bomb_is_refused_or_harmless_and_never_late(checker, bomb) -> None:
    checker.check(REGEX)
    began = time.monotonic()
    error = error_of(
        lambda: checker.check(GuidedParams(**{**REFUSED, **HARD}[bomb], origin="here"))
    )
    if error is None:
        assert bomb in HARD  # compiled in time: its work is in the masks, which have limits too
    else:
        assert isinstance(error, (ParameterError, UnsupportedConstraint))
        assert error.param == "here"
    assert time.monotonic() - began < checking.WALL_SECONDS + 10
    assert checker.check(GuidedParams(regex="[cd]+")).kind == "regex"
    assert len(children()) <= 2
