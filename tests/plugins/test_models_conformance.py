"""Every architecture's configurations against their reference, by the conformance kit."""

from __future__ import annotations

import pytest

from octavo.testing.faults import faults_for, own_faults
from octavo.testing.model import check_variant, make_trial
from octavo.testing.modes import teacher_forced
from small_models import HOST, TEXT_MODELS, Case, cases_of

# The framework's tests try Llama, and what the Transformers backend runs has a file of its own.
VARIANTS = cases_of(*(name for name in TEXT_MODELS if name != "LlamaForCausalLM"))
FIRST = {case[0]: case for case in reversed(VARIANTS)}


@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_an_architecture_passes_the_kit_in_its_first_variant(case: Case) -> None:
    """That every mechanism of its own is noticed when it is missing, among others."""
    checks = check_variant(HOST, *case, VARIANTS[case])
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in VARIANTS if case not in FIRST.values()], ids=", ".join
)
def test_other_variants_equal_the_reference_in_chunks_and_missing_mechanisms_show(
    case: Case, tmp_path
) -> None:
    """Ways to run a model do not depend on the variant; ``octavo plugin test`` tries them all."""
    variant = VARIANTS[case]
    trial = make_trial(HOST, case[0], variant, tmp_path)
    comparison = teacher_forced(trial, max_num_batched_tokens=13)
    assert comparison.passed, comparison.as_text()
    for name, fault in {**faults_for(trial), **own_faults(variant.without)}.items():
        if fault is not None:
            assert not fault.mode(fault.put_into(trial)).passed, name
