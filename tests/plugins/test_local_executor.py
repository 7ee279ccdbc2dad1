"""What the local executor makes of steps that raise on CUDA; no device is needed for that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from octavo.config import EngineConfig, ModelConfig
from octavo.errors import EngineDeadError
from octavo_plugins.executors.local.executor import LocalExecutor


@pytest.fixture
def executor() -> LocalExecutor:
    """One whose runner raises at each launch."""

    def run(plan):
        raise ValueError("a plugin's error")

    executor = LocalExecutor(EngineConfig(model=ModelConfig(model="none")), None, None)
    executor._worker = SimpleNamespace(runner=SimpleNamespace(run=run))
    return executor


def test_a_step_that_raised_at_launch_is_told_when_what_it_had_launched_is_over(
    executor, monkeypatch
):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(True))
    step = executor.submit(None)
    assert not waits
    with pytest.raises(ValueError, match="a plugin's error"):
        step.result()
    assert waits


def test_a_broken_device_ends_the_engine_whatever_the_launch_said(executor, monkeypatch):
    def synchronize():
        raise torch.AcceleratorError("an illegal memory access was encountered", 700)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        executor.submit(None).result()


def test_idle_work_that_raises_is_given_up_and_ends_nothing(executor, caplog):
    calls = []

    def use_idle_time():
        calls.append(True)
        raise torch.OutOfMemoryError("somebody else took the memory")

    executor._worker.runner.use_idle_time = use_idle_time
    assert [executor.use_idle_time() for _ in range(3)] == [False] * 3
    assert len(calls) == len(caplog.records) == 1


def test_a_device_found_broken_in_idle_time_ends_the_engine(executor):
    def use_idle_time():
        raise torch.AcceleratorError("an illegal memory access was encountered", 700)

    executor._worker.runner.use_idle_time = use_idle_time
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        executor.use_idle_time()
