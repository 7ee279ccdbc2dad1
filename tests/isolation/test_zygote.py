"""Processes that are copies of a zygote are what fresh ones would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COPIED = (sys.executable, "-P", "-m", "octavo_probe")
PROBE = """
import json, os, subprocess, sys, torch

def told():
    files = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{name}")}
    return {"pid": os.getpid(), "parent": os.getppid(), "folder": os.getcwd(),
            "environment": dict(os.environ), "arguments": sys.argv[1:], "name": __name__,
            "session": os.getsid(0), "group": os.getpgid(0), "files": files,
            "path": sys.path, "input": sys.stdin.read(),
            "threads": len(os.listdir("/proc/self/task"))}

match sys.argv[1]:
    case "tell":
        print(json.dumps(told()))
    case "exit":
        sys.exit(eval(sys.argv[2]))
    case "raise":
        raise ValueError("so it is")
    case "sleep":
        print("ready", flush=True)
        input()
    case "compute":
        torch.set_num_threads(2)
        x = torch.ones(512, 512)
        print(float((x @ x).sum()), torch.get_num_threads())
    case "start":
        command = [sys.executable, "-P", "-m", "octavo_probe", *sys.argv[2:]]
        print(subprocess.run(command, capture_output=True, text=True, input="").stdout)
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "octavo_probe.py").write_text(PROBE)
    paths = [str(tmp_path), os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


def told(*command: str, **ways: Any) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, **ways)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_copy_is_told_what_a_fresh_process_is(probe: Path) -> None:
    ways = {"input": "a line\n", "cwd": probe, "env": {**os.environ, "OCTAVO_A": "b"}}
    copy = told(*COPIED, "tell", "x y", **ways)
    fresh = told(sys.executable, "-m", "octavo_probe", "tell", "x y", **ways)
    same = ("parent", "folder", "environment", "arguments", "name", "session", "group", "input")
    assert {name: copy[name] for name in same} == {name: fresh[name] for name in same}
    assert fresh["path"][1:] == copy["path"]  # the first is the folder, which -P leaves out


def test_a_copy_has_no_file_but_its_own_and_one_thread(probe: Path) -> None:
    with (probe / "inherited").open("w") as file, (probe / "not").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        number = file.fileno()
        copy = told(*COPIED, "tell", input="", pass_fds=[number])
    assert copy["files"][str(number)] == str(probe / "inherited")
    assert str(probe / "not") not in copy["files"].values()
    assert len(copy["files"]) <= 3 + 1 + 1  # streams, the file, the link to its zygote
    assert copy["threads"] == 1


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [("None", 0, ""), ("3", 3, ""), ("256 + 7", 7, ""), ("'no model'", 1, "no model\n")],
)
def test_exit_codes_are_the_interpreters(probe: Path, asked, status, said) -> None:
    done = subprocess.run([*COPIED, "exit", asked], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)


def test_what_a_copy_raises_is_told_on_its_standard_error(probe: Path) -> None:
    done = subprocess.run([*COPIED, "raise"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: so it is")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_copy_that_a_signal_ends_is_seen_to(probe: Path, number: signal.Signals) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*COPIED, "sleep"], **pipes, process_group=0) as copy:
        assert copy.stdout.readline() == b"ready\n"
        assert copy.poll() is None
        assert b"octavo_probe" in Path(f"/proc/{copy.pid}/cmdline").read_bytes()
        os.killpg(copy.pid, number)
        assert copy.wait(60) == -number


def test_a_copy_starts_copies(probe: Path) -> None:
    outer = [*COPIED, "start"]
    inner = json.loads(subprocess.run([*outer, "tell"], capture_output=True, text=True).stdout)
    assert len(inner["files"]) == 3 + 1  # a fresh process has no link to a zygote
    assert inner["arguments"] == ["tell"]
    assert inner["parent"] != os.getpid()


def test_a_copy_computes_in_threads_of_its_own(probe: Path) -> None:
    done = subprocess.run([*COPIED, "compute"], capture_output=True, text=True)
    assert done.stdout == f"{512.0**3} 2\n"


def test_variables_that_libraries_read_when_imported_start_a_fresh_process(
    probe, monkeypatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(probe))
    assert len(told(*COPIED, "tell", input="")["files"]) == 3


def test_a_zygote_ends_with_its_process(probe: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*COPIED, "sleep"], **pipes) as copy:
        copy.stdout.readline()
        (zygote,) = Path(f"/proc/{copy.pid}/task/{copy.pid}/children").read_text().split()
        copy.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{zygote}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
