"""What the local executor makes of steps that raise on CUDA; no device is needed for that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from decode_plans import decode_plan
from octavo.config import CacheConfig, EngineConfig, ModelConfig
from octavo.errors import EngineDeadError, ModelError
from octavo.execution.recordings import Recordings
from octavo.model_folder import open_model
from octavo.steps.recording import StepKind
from octavo.testing.random_model import make_random_model
from octavo_plugins.executors.local.executor import LocalExecutor
from octavo_registry import PluginHost


@pytest.fixture
def executor() -> LocalExecutor:
    """One whose runner raises at each launch."""

    def run(plan):
        raise ValueError("a plugin's error")

    executor = LocalExecutor(EngineConfig(model=ModelConfig(model="none")), None, None)
    executor._worker = SimpleNamespace(runner=SimpleNamespace(run=run))
    return executor


UNGUIDED = SimpleNamespace(awaits_masks=False)


def test_a_step_that_raised_at_launch_is_told_when_what_it_had_launched_is_over(
    executor, monkeypatch
):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(True))
    step = executor.submit(UNGUIDED)
    assert not waits
    with pytest.raises(ValueError, match="a plugin's error"):
        step.result()
    assert waits


def test_a_broken_device_ends_the_engine_whatever_the_launch_said(executor, monkeypatch):
    def synchronize():
        raise torch.AcceleratorError("an illegal memory access was encountered", 700)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        executor.submit(UNGUIDED).result()


def recordings_of(prepare) -> Recordings:
    """Some whose kinds leave idle time a few sizes."""
    recordings = Recordings(prepare, num_slots=4, has_adapters=False, has_processors=False)
    recordings._kinds[StepKind(True)] = set()
    return recordings


def test_idle_work_that_raises_is_given_up_and_ends_nothing(executor, caplog):
    calls = []

    def prepare(recording):
        calls.append(recording)
        raise torch.OutOfMemoryError("somebody else took the memory")

    executor._recordings = recordings_of(prepare)
    assert [executor.use_idle_time() for _ in range(3)] == [False] * 3
    assert len(calls) == len(caplog.records) == 1


def test_a_device_found_broken_in_idle_time_ends_the_engine(executor):
    def prepare(recording):
        raise torch.AcceleratorError("an illegal memory access was encountered", 700)

    executor._recordings = recordings_of(prepare)
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        executor.use_idle_time()


def test_what_cannot_be_recorded_behind_a_step_leaves_the_step_as_it_was(
    executor, monkeypatch, caplog
):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    executor._worker.runner.run = lambda plan: None
    fails_with = [ValueError("a plugin's error")]

    def prepare(recording):
        raise fails_with[0]

    executor._recordings = recordings_of(prepare)
    plan = decode_plan(1, num_rows=2)
    assert executor.submit(plan).result() is None
    assert plan.recording is None
    assert executor.submit(decode_plan(2, num_rows=2)).result() is None  # and is not tried again
    assert len(caplog.records) == 1
    fails_with[0] = torch.AcceleratorError("an illegal memory access was encountered", 700)
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        executor.submit(decode_plan(3, num_rows=3)).result()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def on_new_thread():
    with ThreadPoolExecutor(1) as another:
        return another.submit(torch.get_num_threads).result()


def loading(folder, num_threads):
    model = ModelConfig(model=str(folder), device="cpu", num_threads=num_threads)
    host = PluginHost.discover()
    config = EngineConfig(model=model, cache=CacheConfig(num_blocks=80))
    return LocalExecutor(config, open_model(model, host), host)


@pytest.mark.parametrize(("asked", "given"), [(None, 1), (2, 2)])
def test_a_small_model_runs_on_one_thread_unless_asked_otherwise_and_no_others_do(
    tmp_path, three_threads, asked, given
):
    executor = loading(make_random_model(tmp_path), asked)
    try:
        executor.start()
        assert executor._thread.submit(torch.get_num_threads).result() == given
        assert torch.get_num_threads() == on_new_thread() == 3
    finally:
        executor.close()


def test_threads_are_as_before_when_a_model_cannot_be_loaded(tmp_path, three_threads):
    executor = loading(make_random_model(tmp_path), num_threads=2)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        executor.start()
    executor.close()
    assert torch.get_num_threads() == on_new_thread() == 3
