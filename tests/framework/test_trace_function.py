"""The file of calls and returns that shows where a process hangs or dies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from octavo.observability.function_trace import FunctionTrace, trace_functions
from octavo.params import SamplingParams
from octavo_registry import PluginHost

LINE = r"^\d+\.\d{6} \[MainThread\] call   octavo/params\.py:\d+ SamplingParams\.__post_init__$"


def traced_run(tmp_path: Path, code: str) -> tuple[int, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OCTAVO_TRACE_FUNCTION": str(tmp_path / "traces" / "run")},
        check=False,
        capture_output=True,
    )
    files = sorted((tmp_path / "traces").iterdir())
    assert all(file.name.startswith("run.") and file.suffix == ".log" for file in files)
    return done.returncode, {file.name.split(".")[1]: file.read_text() for file in files}


def test_calls_and_returns_of_octavo_and_of_nobody_else_are_recorded(tmp_path: Path) -> None:
    import re

    trace = FunctionTrace(tmp_path / "t.log")
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        SamplingParams(max_tokens=3)
        os.path.join("a", "b")
        thread = threading.Thread(target=len, args=("",))
        thread.start()
        thread.join()
    finally:
        sys.setprofile(before)
    lines = (tmp_path / "t.log").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert any(re.match(LINE, line) for line in lines)
    calls = [line for line in lines if "] call" in line]
    returns = [line for line in lines if "] return" in line]
    assert len(calls) == len(returns) > 0
    assert all(" octavo" in line for line in calls)


def test_the_last_line_of_a_process_that_died_says_where(tmp_path: Path) -> None:
    code = (
        "import os, octavo.frontend.options, octavo.cli\n"
        "from octavo.observability import logs\n"
        "logs.misspelled = lambda: os._exit(9)\n"
        "octavo.cli.main(['version'])\n"
    )
    status, traces = traced_run(tmp_path, code)
    assert status == 9
    (text,) = traces.values()
    assert " call   octavo/observability/logs.py:" in text.splitlines()[-1]
    assert text.splitlines()[-1].endswith(" warn_of_misspelled_variables")


def test_threads_that_start_later_are_recorded_by_name(tmp_path: Path) -> None:
    code = (
        "import threading\n"
        "from octavo.observability.function_trace import trace_functions\n"
        "from octavo_registry import PluginHost\n"
        "trace_functions()\n"
        "thread = threading.Thread(target=PluginHost, name='worker 7')\n"
        "thread.start(); thread.join()\n"
    )
    _, traces = traced_run(tmp_path, code)
    (text,) = traces.values()
    assert "[worker 7] call   octavo_registry/host.py:" in text


def test_nothing_is_traced_without_the_variable() -> None:
    before = sys.getprofile()
    trace_functions()
    PluginHost()
    assert sys.getprofile() is before


@pytest.mark.slow
def test_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = (
        "import asyncio\n"
        "from octavo import AsyncLLM\n"
        "llm = AsyncLLM('octavo/tiny', num_threads=1)\n"
        "llm.close()\n"
    )
    status, traces = traced_run(tmp_path, code)
    assert status == 0
    assert len(traces) == 2
    texts = list(traces.values())
    assert sum("EngineCore.__init__" in text for text in texts) == 1
    assert sum("AsyncLLM.__init__" in text for text in texts) == 1
