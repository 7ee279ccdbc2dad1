"""The conformance of a model architecture: equal to its reference however the engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from octavo.adapters.check import matching_names
from octavo.model_folder import open_model
from octavo.testing.adapters import MISTAKES, RANKS, with_adapters
from octavo.testing.calm import calm
from octavo.testing.comparison import Comparison
from octavo.testing.embedder import check_embedder
from octavo.testing.engine_run import EnginePrompt
from octavo.testing.faults import Fault, faults_for, own_faults
from octavo.testing.media_model import MediaChecks
from octavo.testing.media_trial import make_media_trial, with_items
from octavo.testing.modes import (
    MAX_TOKENS,
    MODES,
    Mode,
    NotUsed,
    Trial,
    alone,
    engine_config,
    in_a_batch,
    make_prompts,
    teacher_forced,
    with_mistake,
)
from octavo.testing.reference import (
    EngineReference,
    ModuleReference,
    Reference,
    write_with_reference,
    write_without_reference,
)
from octavo.testing.report import Check, tried
from octavo.testing.variants import Variant, variants_of
from octavo.wording import listed
from octavo_registry import ModelCapabilities, PluginHost
from octavo_registry.faults import FAILURES, one_line

NO_REFERENCE = (
    "not claimed: the plugin names no reference, so nothing says what the model should compute; "
    "what is claimed is self-consistency: each prompt alone and in one chunk against all other ways"
)


def check_model(host: PluginHost, architecture: str) -> list[Check]:
    """Try each variant of an architecture in float32 on the CPU; a few seconds each."""
    title = f"model {architecture!r}"
    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    if "generate" not in capabilities.tasks:
        if "embed" in capabilities.tasks:
            return check_embedder(host, architecture)
        tasks = ", ".join(capabilities.tasks)
        detail = f"not claimed: the kit checks generation and embedding, not {tasks}"
        return [Check(name=f"{title} generates as its reference", passed=True, detail=detail)]
    checks = []
    for name, variant in variants_of(capabilities).items():
        checks += check_variant(host, architecture, name, variant)
        if capabilities.modalities:
            checks += check_media_variant(host, architecture, name, variant)
    return checks


def check_variant(host: PluginHost, architecture: str, name: str, variant: Variant) -> list[Check]:
    """Try one configuration; ``name`` is what the checks call it."""
    with TemporaryDirectory(prefix="octavo-kit-") as folder, calm():
        return list(_checks(host, architecture, name, variant, Path(folder)))


def check_media_variant(
    host: PluginHost, architecture: str, name: str, variant: Variant
) -> list[Check]:
    """Try the media of one configuration."""
    title = f"model {architecture!r}, {name}"
    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    missing = _missing_for_media(host, architecture, capabilities, variant)
    if missing:
        return [Check(name=f"{title}: its media can be tried", passed=False, detail=missing)]
    with TemporaryDirectory(prefix="octavo-kit-") as folder, calm():
        try:
            _write(host, architecture, variant, Path(folder))
            trial = make_media_trial(host, architecture, variant, Path(folder))
        except FAILURES as error:
            detail = one_line(error)
            return [Check(name=f"{title}: its media can be tried", passed=False, detail=detail)]
        return list(MediaChecks(title, trial, capabilities).run())


def _missing_for_media(
    host: PluginHost, architecture: str, capabilities: ModelCapabilities, variant: Variant
) -> str:
    """What a model that takes media must have registered, and has not."""
    if architecture not in host.inputs:
        return "no input processor is registered (register_inputs)"
    if architecture not in host.multimodal:
        return "no map of media to tensors is registered (register_multimodal)"
    for modality in capabilities.modalities:
        if modality not in variant.media:
            return (
                f"the variant has no example of {modality}; name them in ModelCapabilities"
                ".conformance, as octavo.testing.variants.Variant(media={...})"
            )
        if modality not in host.modalities:
            return f"no plugin decodes {modality} (register_modalities)"
    return ""


def make_trial(host: PluginHost, architecture: str, variant: Variant, folder: Path) -> Trial:
    """Write a model of this configuration into the folder, and build its reference."""
    options = {"model_impl": architecture}  # what is tried, whatever else runs the architecture
    reference: Reference | None = _write(host, architecture, variant, folder)
    if reference is None:
        unshared = engine_config(folder, enable_prefix_caching=False, **options)
        reference = EngineReference(unshared, host)
    vocab_size = open_model(engine_config(folder, **options).model, host).vocab_size
    prompts: tuple[EnginePrompt, ...] = make_prompts(vocab_size)
    if variant.one_item:
        prompts = with_items(make_media_trial(host, architecture, variant, folder), prompts)
    return Trial(
        folder=folder,
        host=host,
        reference=reference,
        prompts=prompts,
        options=options,
    )


def _write(
    host: PluginHost, architecture: str, variant: Variant, folder: Path
) -> ModuleReference | None:
    """Write the folder; None where the plugin names no reference."""
    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    target = variant.reference or capabilities.reference
    declared = variant.architecture or architecture
    if target is not None:
        return write_with_reference(folder, declared, target, variant)
    write_without_reference(folder, declared, host, variant)
    return None


def _checks(
    host: PluginHost, architecture: str, name: str, variant: Variant, folder: Path
) -> Iterator[Check]:
    """Where the plain comparison fails, what comes after it would mean nothing."""
    title = f"model {architecture!r}, {name}"
    try:
        trial = make_trial(host, architecture, variant, folder)
    except FAILURES as error:
        yield Check(name=f"{title}: can be tried", passed=False, detail=one_line(error))
        return
    if isinstance(trial.reference, EngineReference):
        yield Check(name=f"{title}: has a reference", passed=True, detail=NO_REFERENCE)
    equal = f"equal {trial.reference.name}"
    plain = _compared(f"{title}: logits at every position {equal}", teacher_forced, trial)
    yield plain
    if not plain.passed:
        return
    yield _compared(f"{title}: {MAX_TOKENS} greedy tokens, each prompt alone", alone, trial)
    for way, mode in MODES.items():
        yield _compared(f"{title}: the same {way}", mode, trial)
    for mistake, fault in {**faults_for(trial), **own_faults(variant.without)}.items():
        yield _noticed(f"{title}: the kit notices {mistake}", fault, trial)
    if host.models.info(architecture).metadata["capabilities"].lora:
        yield from _adapter_checks(title, trial)


def _adapter_checks(title: str, trial: Trial) -> Iterator[Check]:
    """Random adapters on all linears, each against a reference with weights merged by hand."""
    ranks = ", ".join(map(str, RANKS))
    name = f"{title}: adapters of ranks {ranks} and none in a batch equal merged weights"
    if not isinstance(trial.reference, ModuleReference):
        yield Check(name=name, passed=True, detail=NO_REFERENCE)
        return
    try:
        adapted = with_adapters(trial, RANKS, num_rank_rows=sum(RANKS))
    except FAILURES as error:
        yield Check(name=name, passed=False, detail=one_line(error))
        return
    yield tried(f"{title}: every linear takes adapters", deaf_linears(trial.reference, adapted))
    yield _compared(name, in_a_batch, adapted)
    for mistake, change in MISTAKES.items():
        mistaken = partial(with_mistake, in_a_batch, change(adapted))
        yield _told_apart(f"{title}: the kit notices {mistake}", mistaken)


def deaf_linears(reference: ModuleReference, adapted: Trial) -> Iterator[str]:
    """Linears that the reference uses for a prompt, and the engine's adapters cannot change."""
    linears = adapted.adapters[0].down
    known = set(matching_names(linears, reference.weight_names()).values())
    if deaf := [name for name in reference.linears_of(adapted.prompts[0]) if name not in known]:
        yield (
            f"no adapter reaches {listed(deaf)}: build them of octavo.layers, which go by "
            "ModelSpec.adapters"
        )


def _compared(name: str, mode: Mode, trial: Trial) -> Check:
    try:
        comparison = mode(trial)
    except NotUsed as reason:
        return Check(name=name, passed=True, detail=f"not used: {reason}")
    except FAILURES as error:
        return Check(name=name, passed=False, detail=one_line(error))
    return Check(name=name, passed=comparison.passed, detail=comparison.as_text())


def _noticed(name: str, fault: Fault | None, trial: Trial) -> Check:
    if fault is None:
        return Check(name=name, passed=True, detail="not used: the configuration has none")
    return _told_apart(name, partial(fault.show, trial))


def _told_apart(name: str, mistaken: Callable[[], Comparison]) -> Check:
    """A comparison that passes while something is wrong proves nothing while it is right."""
    try:
        comparison = mistaken()
    except FAILURES as error:
        return Check(name=name, passed=False, detail=one_line(error))
    text = comparison.as_text()
    if not comparison.passed:
        return Check(name=name, passed=True, detail=f"noticed: {text}")
    blind = "the comparison still passes, so it proves nothing here; try another configuration"
    return Check(name=name, passed=False, detail=f"{blind}: {text}")
