"""Every architecture's configurations against their reference, by the conformance kit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.testing.faults import faults_for, own_faults
from octavo.testing.model import check_variant, make_trial
from octavo.testing.modes import alone, teacher_forced
from small_models import HOST, TEXT_MODELS, Case, cases_of

# What the Transformers backend runs has a file of its own.
VARIANTS = cases_of(*TEXT_MODELS)
FIRST = {case[0]: case for case in reversed(VARIANTS)}
OF_EACH_KIND = {  # beside Llama, which the framework's tests try
    name: FIRST[name]
    for name in (
        "DeepseekV3ForCausalLM",  # latents in the cache, experts
        "GPT2LMHeadModel",  # embedded positions
        "GptOssForCausalLM",  # sinks, windows, experts
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_EACH_KIND.values(), ids=OF_EACH_KIND)
def test_an_architecture_passes_the_kit_in_its_first_variant(case: Case) -> None:
    """Ways to run a model depend on what its layers keep and look up, and on nothing else of it."""
    checks = check_variant(HOST, *case, VARIANTS[case])
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in VARIANTS if case not in OF_EACH_KIND.values()], ids=", ".join
)
def test_others_equal_the_reference_in_chunks_and_alone_and_missing_mechanisms_show(
    case: Case, tmp_path
) -> None:
    """``octavo plugin test`` tries all ways; adapters have tests of their own."""
    variant = VARIANTS[case]
    trial = make_trial(HOST, case[0], variant, tmp_path)
    few = replace(trial, prompts=trial.prompts[9::5])
    for comparison in (teacher_forced(trial, max_num_batched_tokens=13), alone(few)):
        assert comparison.passed, comparison.as_text()
    for name, fault in {**faults_for(trial), **own_faults(variant.without)}.items():
        if fault is not None:
            assert not fault.show(trial).passed, name
