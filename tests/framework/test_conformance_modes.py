"""Each mode brings about what it is for, or says that it did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from model_mutants import VARIANTS
from octavo.errors import EngineDeadError, RequestFailedError
from octavo.scheduling.sequence import Sequence
from octavo.testing import engine_run
from octavo.testing.faults import Fault, SkippedCopies, faults_for, without_rope_scaling
from octavo.testing.model import make_trial
from octavo.testing.modes import MODES, NotExercised, Trial, alone, forked, in_a_batch, preempted
from octavo_registry import PluginHost

MakeTrial = Callable[[str], Trial]


@pytest.fixture(scope="module")
def trial_of(tmp_path_factory: pytest.TempPathFactory) -> MakeTrial:
    """A trial with a few prompts only, of one of the mutants or of Llama."""
    host = PluginHost.discover(plugins=["model_mutants"])

    def make(architecture: str) -> Trial:
        folder: Path = tmp_path_factory.mktemp(architecture)
        trial = make_trial(host, architecture, VARIANTS["one layer"], folder)
        return replace(trial, prompts=trial.prompts[5:15:3])

    return make


def test_a_model_that_is_wrong_alone_is_right_in_a_batch(trial_of: MakeTrial) -> None:
    trial = trial_of("WrongAlone")
    assert not alone(trial).passed
    assert in_a_batch(trial).passed


def test_a_model_that_is_wrong_in_one_size_of_chunk_is_found(trial_of: MakeTrial) -> None:
    trial = trial_of("WrongInSevens")
    assert not MODES["in chunks of 7 tokens"](trial).passed
    assert MODES["in a batch"](trial).passed


def test_a_model_that_raises_fails_with_its_reason(trial_of: MakeTrial) -> None:
    with pytest.raises(RequestFailedError, match="no forward today"):
        in_a_batch(trial_of("Raises"))


@pytest.mark.parametrize("by", ["recompute", "swap"])
def test_preemption_that_does_not_happen_proves_nothing(trial_of: MakeTrial, by: str) -> None:
    trial = trial_of("LlamaForCausalLM")
    with pytest.raises(NotExercised, match=f"nothing was preempted by {by}"):
        preempted(replace(trial, prompts=trial.prompts[:1]), by=by)


def test_a_prefix_cache_that_stays_cold_proves_nothing(trial_of: MakeTrial) -> None:
    cold = replace(trial_of("LlamaForCausalLM"), options={"enable_prefix_caching": False})
    with pytest.raises(NotExercised, match="prefix cache"):
        MODES["with a warm prefix cache"](cold)


def test_forks_that_differ_from_independent_requests_are_found(trial_of: MakeTrial) -> None:
    trial = trial_of("LlamaForCausalLM")
    assert forked(trial).passed
    assert not Fault(executor=SkippedCopies, mode=forked).show(trial).passed


def test_forks_that_draw_from_other_streams_are_found(
    trial_of: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of("LlamaForCausalLM")
    monkeypatch.setattr(Sequence, "seed", property(lambda self: self.request.sampling.seed))
    comparison = forked(trial)
    assert comparison.problems[0] == "fork 1: other tokens than if asked for alone"


def test_a_fault_leaves_the_host_as_it_is(trial_of: MakeTrial) -> None:
    trial = trial_of("LlamaForCausalLM")
    for fault in faults_for(trial).values():
        if fault is not None:
            assert not fault.show(trial).passed
    assert in_a_batch(trial).passed


def test_an_engine_that_is_stuck_ends_the_run(
    trial_of: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_run, "MAX_IDLE_STEPS", 3)
    trial = trial_of("LlamaForCausalLM")
    with (
        trial.engine(max_num_batched_tokens=1) as engine,
        pytest.raises(EngineDeadError, match="no token in 3 steps"),
    ):
        engine.generate(trial.prompts, max_tokens=4)


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ({}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, None),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_scaling": {"rope_type": "default", "factor": 2.0}},
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0}},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
        ),
        (
            {"rope_parameters": {"a": {"rope_type": "yarn"}, "b": {"rope_theta": 5.0}}},
            {"rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_theta": 5.0}}},
        ),
    ],
)
def test_rope_scaling_is_taken_out_wherever_it_stands(
    config: dict[str, object], overrides: dict[str, object] | None
) -> None:
    assert without_rope_scaling(config) == overrides
