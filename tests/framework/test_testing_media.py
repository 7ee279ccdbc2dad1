"""The kit passes media plugins that are right, and names what is wrong with the others."""

from __future__ import annotations

from typing import Any

import pytest

from media_mutants import ACROSS, DECODERS, FUNCTIONS, MODELS
from octavo.testing.kit import run
from octavo.testing.modality import check_modality
from octavo.testing.model import check_media_variant, check_variant
from octavo.testing.report import Check
from octavo.testing.variants import Variant, variants_of
from octavo_registry import ModelCapabilities, PluginHost, hookimpl
from small_models import HOST

VARIANTS = {
    name: variants_of(capabilities)
    for name in HOST.models.names()
    if (capabilities := HOST.models.info(name).metadata["capabilities"]).modalities
    and capabilities.conformance
}
MEDIA_MODELS = [(name, variant) for name in VARIANTS for variant in VARIANTS[name]]
ONE_ITEM_MODELS = [
    (name, variant) for name, variant in MEDIA_MODELS if VARIANTS[name][variant].one_item
]


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover(plugins=["media_mutants"])


def failures(checks: list[Check]) -> list[str]:
    """What comes behind the title."""
    return [c.name.partition(": ")[2] for c in checks if not c.passed]


def checked(host: PluginHost, architecture: str) -> list[Check]:
    return check_media_variant(
        host, architecture, "tiny", first_variant("LlavaForConditionalGeneration")
    )


def first_variant(architecture: str) -> Variant:
    return next(iter(VARIANTS[architecture].values()))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "variant"), MEDIA_MODELS, ids=str)
def test_a_built_in_model_passes(architecture: str, variant: str) -> None:
    checks = check_media_variant(HOST, architecture, variant, VARIANTS[architecture][variant])
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
    assert len(checks) == 13


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MODELS)
def test_a_model_with_a_mistake_is_found(host: PluginHost, mutant: str) -> None:
    assert MODELS[mutant] in failures(checked(host, mutant))


@pytest.mark.parametrize("mutant", FUNCTIONS)
def test_a_processor_with_a_mistake_is_found(host: PluginHost, mutant: str) -> None:
    assert FUNCTIONS[mutant][2] in failures(checked(host, mutant))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "variant"), ONE_ITEM_MODELS, ids=str)
def test_with_one_item_in_every_prompt_a_built_in_model_equals_its_reference(
    architecture: str, variant: str
) -> None:
    """Those whose prompts may be text have other tests of the same."""
    checks = check_variant(HOST, architecture, variant, VARIANTS[architecture][variant])
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ACROSS)
def test_a_mistake_in_what_is_read_across_is_found(host: PluginHost, mutant: str) -> None:
    variant = first_variant("WhisperForConditionalGeneration")
    check = check_variant if mutant == "HearsALayerLate" else check_media_variant
    assert ACROSS[mutant][2] in failures(check(host, mutant, "tiny", variant))


def test_a_model_that_brings_no_example_cannot_be_tried(host: PluginHost) -> None:
    (check,) = check_media_variant(host, "WithoutExamples", "tiny", Variant())
    assert not check.passed
    assert "the variant has no example of image; name them in ModelCapabilities" in check.detail


class OtherPlaces:
    """A plugin that places the images of another plugin's model, and wrongly."""

    OCTAVO_API = "1"
    __name__ = "other_places"

    @hookimpl
    def register_inputs(self, inputs: Any) -> None:
        inputs.add("LlavaForConditionalGeneration", "media_mutants:place_one_too_few", replace=True)


def test_a_processor_is_tried_with_the_model_of_another_plugin(monkeypatch) -> None:
    monkeypatch.setattr("octavo.testing.model.check_variant", lambda *given: [])
    host = PluginHost.discover(plugins=[OtherPlaces()])
    report = run(host, "other_places")
    assert "an item has as many rows as placeholders" in failures(list(report.checks))


class NamesNoFunction:
    """Its function for rows is not there."""

    OCTAVO_API = "1"
    __name__ = "names_no_function"

    @hookimpl
    def register_multimodal(self, mm: Any) -> None:
        mm.add("Unknown", "media_mutants:pixels_of_none", rows="media_mutants:none")


def test_a_function_that_only_some_requests_need_is_missed() -> None:
    report = run(PluginHost.discover(plugins=[NamesNoFunction()]), "names_no_function")
    (check,) = [check for check in report.checks if not check.passed]
    assert "has no attribute 'none'" in check.detail


class NamesNoTranscriber:
    """Its model is one of another plugin, and its transcriber is not there."""

    OCTAVO_API = "1"
    __name__ = "names_no_transcriber"

    @hookimpl
    def register_models(self, models: Any) -> None:
        missing = ModelCapabilities(transcriber="media_mutants:none")
        models.add("Writes", "media_mutants:Sound", capabilities=missing)


def test_a_transcriber_that_is_not_there_is_missed() -> None:
    report = run(PluginHost.discover(plugins=[NamesNoTranscriber()]), "names_no_transcriber")
    (check,) = [check for check in report.checks if not check.passed]
    assert "has no attribute 'none'" in check.detail


@pytest.mark.parametrize("modality", ["image", "video", "audio"])
def test_a_built_in_decoder_passes(modality: str) -> None:
    checks = check_modality(HOST, modality)
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
    assert len(checks) == 9


def test_a_decoder_with_a_mistake_is_found(host: PluginHost) -> None:
    assert failures(check_modality(host, "Numbers")) == []
    assert {name: failures(check_modality(host, name)) for name in DECODERS} == {
        name: [check] for name, check in DECODERS.items()
    }


def test_a_decoder_without_samples_cannot_be_tried(host: PluginHost) -> None:
    (check,) = check_modality(host, "WithoutSamples")
    assert not check.passed
    assert "no samples" in check.detail
