"""The engine process: start, work, every kind of death, and its end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.config import EngineConfig, ModelConfig
from octavo.engine.process_client import ProcessClient
from octavo.engine.socket_client import LAST_WORDS_MILLISECONDS
from octavo.errors import ConfigError, EngineDeadError, OctavoError
from octavo.messages import AdapterHead, EngineRequest, PackedAdapter, StepOutputs, TokenSampling
from octavo_registry.manifest import Manifest

STUB = Path(__file__).with_name("stub_engine.py")
MANIFEST = Manifest(api_version="1.0", plugins=())
FAIL_ENGINE, FAIL_REQUEST, EXIT_PROCESS = 9001, 9002, 9003
IDLE_TIMES = 5

Start = Callable[..., ProcessClient]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as clients:

        def start(model: str = "ok") -> ProcessClient:
            config = EngineConfig(model=ModelConfig(model=model))
            client = ProcessClient(config, MANIFEST, command=(sys.executable, str(STUB)))
            clients.callback(client.close)
            return client

        yield start


def request(sequence: int, last: int = 10, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(
        request_id=str(sequence),
        sequences=(sequence,),
        prompt_token_ids=[1, last],
        sampling=TokenSampling(seed=0, max_tokens=max_tokens),
    )


def poll_until_end(client: ProcessClient, sequence: int, seconds: float = 60) -> list[StepOutputs]:
    deadline = time.monotonic() + seconds
    outputs = []
    while time.monotonic() < deadline:
        step = client.poll(0.1)
        if step is not None:
            outputs.append(step)
            if any(end.sequence == sequence for end in step.ends):
                return outputs
    raise AssertionError(f"sequence {sequence} did not end")


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(") ", 1)[1][0] != "Z"


def is_gone(pid: int) -> bool:
    """Whether it ends, in the time that a busy machine may take."""
    deadline = time.monotonic() + 30
    while runs(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_tokens_and_ends_come_back_in_order(start: Start) -> None:
    client = start()
    assert client.ready.max_model_len == 1000
    client.add([request(1), request(2, last=20)])
    outputs = poll_until_end(client, 2)
    pairs = [pair for step in outputs for pair in zip(step.sequences, step.tokens, strict=True)]
    assert [token for sequence, token in pairs if sequence == 2] == [21, 22, 23]


def test_an_aborted_sequence_is_freed(start: Start) -> None:
    client = start()
    client.add([request(1, max_tokens=10**6)])
    while client.poll(1) is None:
        pass
    client.abort([1, 77])
    assert client.call("stats")["live"] == 0


def test_a_call_keeps_the_outputs_that_come_before_its_answer(start: Start) -> None:
    client = start()
    client.add([request(1, max_tokens=50)])
    time.sleep(0.2)
    assert client.call("stats")["pid"] == client.pid
    steps = poll_until_end(client, 1)
    assert [t for step in steps for t in step.tokens] == list(range(11, 61))


def test_an_adapters_bytes_arrive_between_other_messages_and_one_may_be_taken_back(
    start: Start,
) -> None:
    client = start("ok")
    data = np.random.default_rng(0).integers(0, 256, 5_000_000, np.uint8)
    for name in ("a", "b"):
        head = AdapterHead(content_hash=name, rank=1, dtype="float32", shapes={"x": (1, 2, 3)})
        client.add_adapter(PackedAdapter(head, data.data))
    client.remove_adapter("a")
    client.remove_adapter("never added")
    assert client.call("adapters") == {"b": hashlib.sha256(data).hexdigest()}


def test_a_utility_that_raises_is_the_callers_error_only(start: Start) -> None:
    client = start()
    with pytest.raises(OctavoError, match="no engine method 'nonsense'"):
        client.call("nonsense")
    assert client.alive


def test_an_engine_uses_idle_time_until_nothing_is_left_to_prepare(start: Start) -> None:
    client = start()
    client.add([request(0)])
    poll_until_end(client, 0)
    deadline = time.monotonic() + 30
    while client.call("stats")["idle"] < IDLE_TIMES and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.call("stats")["idle"] == IDLE_TIMES


def test_an_engine_without_work_sees_that_a_worker_has_ended(start: Start) -> None:
    client = start("fading")
    with pytest.raises(EngineDeadError, match="a worker has ended"):
        assert client.poll(20.0) is not None


def test_requests_come_between_what_an_engine_does_in_idle_time(start: Start) -> None:
    client = start("restless")
    while client.call("stats")["idle"] <= IDLE_TIMES:
        pass
    for sequence in range(3):
        client.add([request(sequence)])
        poll_until_end(client, sequence)


def test_an_idle_engine_uses_no_cpu(start: Start) -> None:
    client = start()
    stat = Path(f"/proc/{client.pid}/stat")
    if not stat.exists():
        pytest.skip("needs /proc")

    def ticks() -> int:
        return sum(map(int, stat.read_text().rsplit(") ", 1)[1].split()[11:13]))

    used = []
    for _ in range(5):  # it may still end its start
        before = ticks()
        time.sleep(0.5)
        used.append(ticks() - before)
        if used[-1] <= 1:
            break
    assert min(used) <= 1


def test_wake_ends_a_waiting_poll(start: Start) -> None:
    client = start()
    threading.Timer(0.1, client.wake).start()
    began = time.monotonic()
    assert client.poll(10) is None
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("model", "kind", "cause"),
    [
        ("config-error", ConfigError, "^block_size=7 is wrong$"),
        ("crash", EngineDeadError, "^RuntimeError: no such device$"),
        ("exit", EngineDeadError, "exited with code 7.*the driver is too old"),
    ],
)
def test_an_engine_that_cannot_start_says_why(
    start: Start, model: str, kind: type[Exception], cause: str
) -> None:
    with pytest.raises(kind, match=cause):
        start(model)


def test_a_command_that_is_no_engine_is_an_error() -> None:
    config = EngineConfig(model=ModelConfig(model="ok"))
    with pytest.raises(EngineDeadError, match="exited with code 1"):
        ProcessClient(config, MANIFEST, command=(sys.executable, "-c", "raise SystemExit(1)"))


def test_a_step_that_raises_ends_the_engine_with_its_cause(start: Start) -> None:
    client = start()
    client.add([request(1, last=FAIL_ENGINE)])
    with pytest.raises(EngineDeadError, match="RuntimeError: illegal memory access"):
        poll_until_end(client, 1)
    assert not client.alive
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        client.add([request(2)])
    assert is_gone(client.pid)


def test_a_request_that_fails_leaves_the_engine_alive(start: Start) -> None:
    client = start()
    client.add([request(1, last=FAIL_REQUEST), request(2)])
    ends = [end for step in poll_until_end(client, 2) for end in step.ends]
    assert [(end.sequence, end.reason) for end in ends] == [(1, "error"), (2, "length")]
    assert client.alive


def test_an_exit_inside_a_step_names_the_code(start: Start) -> None:
    client = start()
    client.add([request(1, last=EXIT_PROCESS)])
    with pytest.raises(EngineDeadError, match="exited with code 3"):
        poll_until_end(client, 1)


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_engine_is_seen_at_once(start: Start, busy: bool) -> None:
    delays = random.Random(busy)
    seconds: list[float] = []
    for _ in range(3):
        client = start()
        if busy:
            client.add([request(1, max_tokens=10**9)])
        killed: list[float] = []

        def kill(pid: int = client.pid, killed: list[float] = killed) -> None:
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        threading.Timer(delays.uniform(0, 0.2), kill).start()
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            poll_until_end(client, 1)
        seconds.append(time.monotonic() - killed[0])
        with pytest.raises(EngineDeadError):
            client.abort([1])
    assert sorted(seconds)[1] < 1  # a busy machine may be late once
    assert min(seconds) < LAST_WORDS_MILLISECONDS / 1000, "last words are waited for in vain"


def test_a_kill_before_a_message_is_an_error_and_no_hang(start: Start) -> None:
    client = start()
    os.kill(client.pid, signal.SIGKILL)
    assert is_gone(client.pid)
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        client.call("stats")
    assert time.monotonic() - began < 10


def test_a_kill_during_start_up_is_seen_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            began.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    seconds: list[float] = []
    for delay in (0.0, 0.05, 0.5):
        killed: list[float] = []

        def kill(delay: float = delay, killed: list[float] = killed) -> None:
            while not began:
                time.sleep(0.001)
            time.sleep(delay)
            began.pop().kill()
            killed.append(time.monotonic())

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            start("slow")
        killer.join()
        seconds.append(time.monotonic() - killed[0])
    assert sorted(seconds)[1] < 1  # a busy machine may be late once


def test_close_ends_the_process_and_removes_its_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client = start()
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    client.add([request(1, max_tokens=10**9)])
    client.close()
    client.close()
    assert not runs(client.pid)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EngineDeadError, match="was closed"):
        client.poll(1)


@pytest.mark.slow  # it waits for each of close()'s three ways
def test_close_ends_a_process_that_does_not_listen(start: Start) -> None:
    client = start()
    os.kill(client.pid, signal.SIGSTOP)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 30
    assert not runs(client.pid)


def test_a_client_that_is_forgotten_ends_its_engine(start: Start) -> None:
    config = EngineConfig(model=ModelConfig(model="ok"))
    client = ProcessClient(config, MANIFEST, command=(sys.executable, str(STUB)))
    pid = client.pid
    del client
    assert is_gone(pid)


PARENT = """
    import sys, time
    from octavo.config import EngineConfig, ModelConfig
    from octavo.engine.process_client import ProcessClient
    from octavo_registry.manifest import Manifest
    config = EngineConfig(model=ModelConfig(model="ok"))
    MANIFEST = Manifest(api_version="1.0", plugins=())
    client = ProcessClient(config, MANIFEST, command=(sys.executable, {stub!r}))
    try:
        print(client.pid, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print(client.call("stats")["pid"])
"""


def run_parent(tmp_path: Path) -> subprocess.Popen[str]:
    script = textwrap.dedent(PARENT).format(stub=str(STUB))
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_engine_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = run_parent(tmp_path)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert is_gone(pid)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_the_terminal_leaves_no_process_and_no_traceback_of_the_engine(
    tmp_path: Path,
) -> None:
    parent = run_parent(tmp_path)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=60)
    assert out.strip() == str(pid), "the engine still answers after Ctrl-C"
    assert err == ""
    assert parent.returncode == 0
    assert not runs(pid)
