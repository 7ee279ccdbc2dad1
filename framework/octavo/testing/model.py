"""The conformance of a model architecture: equal to its reference however the engine runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from octavo.config import open_model
from octavo.testing.faults import Fault, faults_for
from octavo.testing.modes import (
    MAX_TOKENS,
    MODES,
    Mode,
    Trial,
    alone,
    engine_config,
    make_prompts,
    teacher_forced,
)
from octavo.testing.reference import (
    EngineReference,
    Reference,
    write_with_reference,
    write_without_reference,
)
from octavo.testing.report import Check
from octavo.testing.variants import Variant, variants_of
from octavo_registry import ModelCapabilities, PluginHost
from octavo_registry.faults import one_line

NO_REFERENCE = (
    "not claimed: the plugin names no reference, so nothing says what the model should compute; "
    "what is claimed is self-consistency: each prompt alone and in one chunk against all other ways"
)


def check_model(host: PluginHost, architecture: str) -> list[Check]:
    """Try each variant of an architecture in float32 on the CPU; a few seconds each."""
    title = f"model {architecture!r}"
    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    if "generate" not in capabilities.tasks:
        tasks = ", ".join(capabilities.tasks)
        detail = f"not claimed: the kit checks generation; this model's tasks are {tasks}"
        return [Check(name=f"{title} generates as its reference", passed=True, detail=detail)]
    checks: list[Check] = []
    for name, variant in variants_of(capabilities).items():
        target = variant.reference or capabilities.reference
        with TemporaryDirectory(prefix="octavo-kit-") as folder, _calm():
            checks += _check_variant(
                host, architecture, f"{title} ({name})", Path(folder), variant, target
            )
    return checks


def _check_variant(
    host: PluginHost,
    architecture: str,
    title: str,
    folder: Path,
    variant: Variant,
    target: str | None,
) -> Iterator[Check]:
    """Where the plain comparison fails, what comes after it would mean nothing."""
    try:
        trial = _make_trial(host, architecture, folder, variant, target)
    except Exception as error:
        yield Check(name=f"{title} can be tried", passed=False, detail=one_line(error))
        return
    if target is None:
        yield Check(name=f"{title} has a reference", passed=True, detail=NO_REFERENCE)
    equal = f"equal {target or 'its own'}"
    plain = _compared(f"{title}: logits at every position {equal}", teacher_forced, trial)
    yield plain
    if not plain.passed:
        return
    yield _compared(f"{title}: {MAX_TOKENS} greedy tokens alone {equal}", alone, trial)
    for name, mode in MODES.items():
        yield _compared(f"{title}: the same {name}", mode, trial)
    for name, fault in faults_for(trial).items():
        yield _noticed(f"{title}: the kit notices {name}", fault, trial)


def _make_trial(
    host: PluginHost, architecture: str, folder: Path, variant: Variant, target: str | None
) -> Trial:
    reference: Reference
    if target is None:
        write_without_reference(folder, architecture, host, variant)
        reference = EngineReference(engine_config(folder, enable_prefix_caching=False), host)
    else:
        reference = write_with_reference(folder, architecture, target, variant)
    vocab_size = open_model(engine_config(folder).model, host).vocab_size
    return Trial(folder=folder, host=host, reference=reference, prompts=make_prompts(vocab_size))


def _compared(name: str, mode: Mode, trial: Trial) -> Check:
    try:
        comparison = mode(trial)
    except Exception as error:
        return Check(name=name, passed=False, detail=one_line(error))
    return Check(name=name, passed=comparison.passed, detail=comparison.as_text())


def _noticed(name: str, fault: Fault | None, trial: Trial) -> Check:
    """A comparison that passes while a mechanism is off proves nothing while it is on."""
    if fault is None:
        return Check(name=name, passed=True, detail="not used: the configuration has none")
    faulty = replace(
        trial, host=fault.install(trial.host), options={"hf_overrides": dict(fault.hf_overrides)}
    )
    try:
        comparison = fault.mode(faulty)
    except Exception as error:
        return Check(name=name, passed=False, detail=one_line(error))
    text = comparison.as_text()
    if not comparison.passed:
        return Check(name=name, passed=True, detail=f"noticed: {text}")
    blind = "the comparison still passes, so it proves nothing here; try another configuration"
    return Check(name=name, passed=False, detail=f"{blind}: {text}")


@contextmanager
def _calm() -> Iterator[None]:
    """One thread, which is faster for a tiny model, and no warnings about forced preemptions."""
    logger = logging.getLogger("octavo")
    level, num_threads = logger.level, torch.get_num_threads()
    logger.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        logger.setLevel(level)
        torch.set_num_threads(num_threads)
