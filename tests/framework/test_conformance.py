"""The kit passes what is right, fails what is wrong, and fails itself where it is blind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from model_mutants import ALWAYS_WRONG
from model_mutants import VARIANTS as MUTANT_VARIANTS
from octavo.errors import PluginError
from octavo.testing.adapters import MISTAKES, with_adapters
from octavo.testing.faults import own_faults
from octavo.testing.model import check_model, check_variant, deaf_linears, make_trial
from octavo.testing.modes import MODES
from octavo.testing.reference import ModuleReference
from octavo.testing.report import Check
from octavo.testing.variants import Variant
from octavo_plugins.models.llama.conformance import VARIANTS
from octavo_registry import PluginHost

ONE, WINDOWS = MUTANT_VARIANTS.values()
ALWAYS = {
    "a stale block",
    "a wrong slot",
    "a skipped copy-on-write",
    "a wrong epsilon of norms",
}


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover(plugins=["model_mutants"])


def failures(checks: list[Check]) -> dict[str, str]:
    """By what comes behind the title."""
    return {c.name.partition(": ")[2]: c.detail for c in checks if not c.passed}


@pytest.mark.slow
def test_llama_passes_the_kit_and_every_fault_is_noticed(host: PluginHost) -> None:
    """With windows, which is most; tests/plugins/test_models_conformance.py tries all variants."""
    name = "windows on some layers"
    checks = check_variant(host, "LlamaForCausalLM", name, VARIANTS[name])
    assert failures(checks) == {}
    noticed = {c.name.partition("notices ")[2] for c in checks if c.detail.startswith("noticed: ")}
    assert noticed == ALWAYS | MISTAKES.keys() | {"an ignored window"}
    unused = {c.name.partition("notices ")[2] for c in checks if c.detail.startswith("not used: ")}
    assert unused == {"a missing rope scaling", "a skipped copy of a state"}
    assert len(checks) == 4 + len(MODES) + len(noticed | unused)


def test_each_variant_is_tried(host: PluginHost) -> None:
    names = [check.name for check in check_model(host, "Raises")]
    assert [name.partition(":")[0] for name in names] == [
        "model 'Raises', one layer",
        "model 'Raises', windows",
    ]


def test_a_linear_that_no_adapter_reaches_is_found(host: PluginHost, tmp_path: Path) -> None:
    for architecture, deaf in (
        ("LlamaForCausalLM", []),
        ("PartlyAdapted", ["layers.0.mlp.down_proj"]),
    ):
        folder = tmp_path / architecture
        folder.mkdir()
        trial = make_trial(host, architecture, Variant(), folder)
        adapted = with_adapters(trial, (4,), num_rank_rows=4)
        assert isinstance(trial.reference, ModuleReference)
        found = list(deaf_linears(trial.reference, adapted))
        assert len(found) == len(deaf)
        assert all(name in text for name, text in zip(deaf, found, strict=True))


@pytest.mark.parametrize("mutant", [mutant.__name__ for mutant in ALWAYS_WRONG])
def test_a_wrong_model_is_found_at_once(host: PluginHost, mutant: str) -> None:
    (check,) = check_variant(host, mutant, "tiny", WINDOWS if mutant == "WiderWindow" else ONE)
    assert not check.passed
    assert ": logits at every position equal transformers:" in check.name


@pytest.mark.slow
def test_the_kit_fails_itself_where_a_fault_does_not_show(host: PluginHost) -> None:
    found = failures(check_variant(host, "Deaf", "tiny", ONE))
    of_cache = ALWAYS - {"a wrong epsilon of norms"}  # which shows without a cache, too
    assert found.keys() == {f"the kit notices {fault}" for fault in of_cache}
    assert all("the comparison still passes" in detail for detail in found.values())


def test_a_mechanism_of_the_architecture_s_own_is_switched_off(
    host: PluginHost, tmp_path: Path
) -> None:
    def flip_head(model: Any) -> None:
        model.lm_head.weight.data.copy_(model.lm_head.weight.flip(0))

    one_layer: dict[str, Any] = {"num_hidden_layers": 1}
    without = {"order": flip_head, "epsilon": {"rms_norm_eps": 1e-3}, "nothing": lambda model: None}
    trial = make_trial(host, "LlamaForCausalLM", Variant(config=one_layer), tmp_path)
    shows = {}
    for name, fault in own_faults(without).items():
        assert fault is not None
        shows[name] = not fault.show(trial).passed
    assert shows == {"a missing order": True, "a missing epsilon": True, "a missing nothing": False}


@pytest.mark.slow
def test_without_a_reference_the_report_claims_self_consistency_only(host: PluginHost) -> None:
    checks = check_variant(host, "WithoutReference", "tiny", ONE)
    assert failures(checks) == {}
    assert checks[0].name.endswith(": has a reference")
    assert checks[0].detail.startswith("not claimed: the plugin names no reference")
    assert "self-consistency" in checks[0].detail


def test_a_reference_that_cannot_be_loaded_is_a_failed_check(host: PluginHost) -> None:
    (detail,) = failures(check_variant(host, "ReferenceIsGone", "tiny", ONE)).values()
    assert "NoSuchModel" in detail


def test_a_model_that_embeds_and_has_no_reference_is_not_claimed(host: PluginHost) -> None:
    first, *others = check_model(host, "Embedder")
    assert first.passed
    assert first.detail == "not claimed: the plugin names none"
    # The second variant names one, and the model does not load what that has.
    assert [each.passed for each in others] == [False]


def test_variants_that_are_no_dict_are_refused_by_name(host: PluginHost) -> None:
    with pytest.raises(PluginError, match="conformance='model_mutants:LLAMA' must be a dict"):
        check_model(host, "NoVariants")
