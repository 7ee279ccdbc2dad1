"""A child that is asked: late answers, deadlines without threads, and limits it has inherited."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from octavo.guided.child_pool import ChildPool
from octavo.guided.process import ChildProcess

CHILD = """
import time
from octavo.guided.process import open_pipes, read_frame, write_frame

requests, answers = open_pipes()
while data := read_frame(requests):
    if data == b"half":
        answers.write((9).to_bytes(4, "big") + b"half")
        answers.flush()
        time.sleep(600)
    if data == b"sleep":
        time.sleep(600)
    write_frame(answers, data)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "answering.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    child = ChildProcess("answering")
    yield child
    child.kill()


def test_an_answer_of_any_length_comes_without_a_thread(child, monkeypatch) -> None:
    def refuse(thread) -> None:
        raise AssertionError(f"{thread} is started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for data in (b"a", b"long" * 2**20, b"b"):
        assert child.ask(data, 60) == data


@pytest.mark.parametrize("data", [b"sleep", b"half"])
def test_a_late_answer_ends_the_child(child, data) -> None:
    assert child.ask(b"a", 60) == b"a"
    began = time.monotonic()
    assert child.ask(data, 0.3) is None
    assert 0.3 <= time.monotonic() - began < 30
    assert child.was_late
    child.kill()
    assert not child.alive


def test_a_message_that_the_child_does_not_read_ends_it_in_time(child) -> None:
    assert child.ask(b"a", 60) == b"a"
    os.kill(child.pid, signal.SIGSTOP)
    assert child.ask(b"long" * 2**20, 0.3) is None
    assert child.was_late


def test_a_child_that_has_ended_is_not_late(child) -> None:
    assert child.ask(b"a", 60) == b"a"
    ender = threading.Timer(0.3, child.kill)
    ender.start()
    assert child.ask(b"sleep", 60) is None
    ender.join()
    assert child.ask(b"a", 60) is None
    assert not child.was_late


LIMITED = """
import resource
from octavo.guided.process import Limits

limits = Limits()
for cpu_seconds, mib in ((2, 512), (10**6, 2**30)):
    limits.begin(cpu_seconds=cpu_seconds, seconds=6, mib=mib)
    print(*resource.getrlimit(resource.RLIMIT_CPU), *resource.getrlimit(resource.RLIMIT_DATA))
    limits.end()
    print(*resource.getrlimit(resource.RLIMIT_CPU), *resource.getrlimit(resource.RLIMIT_DATA))
"""


def test_limits_keep_to_hard_ones_that_are_inherited() -> None:
    most = {resource.RLIMIT_CPU: 5000, resource.RLIMIT_DATA: 2**36}

    def inherit() -> None:
        for kind, value in most.items():
            resource.setrlimit(kind, (value, value))

    run = subprocess.run(
        [sys.executable, "-c", LIMITED], preexec_fn=inherit, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found = [list(map(int, line.split())) for line in run.stdout.splitlines()]
    cpu, data = most.values()
    assert found[1:] == [[cpu, cpu, data, data]] * 3
    assert found[0][0] < 60
    assert found[0][2] < 2**35
    assert found[0][1::2] == [cpu, data]


def test_a_pool_keeps_no_child_that_could_not_begin(tmp_path, monkeypatch) -> None:
    (tmp_path / "answering.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    made: list[ChildProcess] = []

    def begin(child: ChildProcess) -> None:
        made.append(child)
        if len(made) == 1:
            raise ValueError("not now")

    pool = ChildPool("answering", begin)
    with pytest.raises(ValueError, match="not now"), pool.child():
        pass
    assert not made[0].alive
    with pool.child() as child:
        assert child.ask(b"a", 60) == b"a"
    gone = weakref.ref(made.pop(0))
    gc.collect()
    assert gone() is None
    pool.close()
