"""The conformance of a model that reads texts: its vectors are those of its reference's states.

Axis suffixes: T tokens of a text, D hidden.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.core import EngineCore
from octavo.model_folder import open_model
from octavo.pooled_calls import PooledCall
from octavo.testing.calm import calm
from octavo.testing.engine_run import Tokens
from octavo.testing.faults import BackendFault, Fault, other_epsilons, own_faults
from octavo.testing.modes import PROMPT_LENGTHS, engine_config
from octavo.testing.reference import ModuleReference, write_with_reference
from octavo.testing.report import Check, tried, unclaimed
from octavo.testing.variants import Variant, variants_of
from octavo_registry import AttentionStep, CacheSpec, ModelCapabilities, PluginHost, StepBounds
from octavo_registry.faults import FAILURES, one_line

MAX_DIFFERENCE: Final = 1e-5
"""Largest difference of an entry, of vectors of length 1."""
COLLECTED: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "cls_token": lambda hidden_TD: hidden_TD[0],
    "lasttoken": lambda hidden_TD: hidden_TD[-1],
    "mean_tokens": lambda hidden_TD: hidden_TD.mean(0),
}
"""What a reference's hidden states become, by sentence-transformers' names."""
MODULES: Final = ("Transformer", "Pooling", "Normalize")


class SeesNeighbours(BackendFault):
    """All rows of a step are one."""

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Sort rows whose tokens see those of all."""
        lens_R = np.array([step.bounds.query_lens_R.sum()], np.int32)
        step.bounds = StepBounds(query_lens_R=lens_R, context_lens_R=lens_R)
        return super().prepare(step, spec)


class SeesBeforeAlone(BackendFault):
    """A token sees none behind it, or all, where it must not."""

    def attend(self, *args: Any, causal: bool = True, **kwargs: Any) -> Tensor:
        """Attend in the other direction."""
        return self._inner.attend(*args, causal=not causal, **kwargs)

    def told(self, spec: CacheSpec) -> CacheSpec:
        """Say so of the layer, too."""
        return replace(spec, sees="all" if spec.sees == "before" else "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTrial:
    """A model's folder, the host whose engine runs it, and what it must equal."""

    folder: Path
    host: PluginHost
    architecture: str
    reference: ModuleReference
    options: Mapping[str, Any]

    def vectors(
        self, texts: Sequence[Tokens], *, seconds: Sequence[int] | None = None, alone: bool = False
    ) -> list[NDArray[np.float32]]:
        """What the engine makes of texts: in steps of one, or of as many as fit."""
        most = 1 if alone else 64
        options = {"model_impl": self.architecture, "max_num_batched_tokens": most}
        core = EngineCore(engine_config(self.folder, **options, **self.options), self.host)
        found: dict[int, NDArray[np.float32]] = {}
        try:
            core.add_call(
                PooledCall(
                    call=0,
                    num_texts=len(texts),
                    token_ids=_packed([token for text in texts for token in text]),
                    lengths=_packed([len(text) for text in texts]),
                    seconds=b"" if seconds is None else _packed(seconds),
                    unit_length=True,
                )
            )
            while core.has_work:
                for rows in core.step().pooled:
                    for error in rows.errors:
                        raise RuntimeError(error.error)
                    numbers = np.frombuffer(rows.numbers, np.int32).tolist()
                    vectors = np.frombuffer(rows.rows, np.float32).reshape(len(numbers), -1)
                    found.update(zip(numbers, vectors, strict=True))
        finally:
            core.close()
        return [found[number] for number in range(len(texts))]

    def expected(self, text: Tokens, mode: str, second: int | None = None) -> NDArray[np.float32]:
        """The vector of the reference's hidden states."""
        ids_1T = torch.tensor([text])
        given: dict[str, Tensor] = {}
        if second is not None:
            given["token_type_ids"] = (torch.arange(len(text)) >= second).long()[None]
        with torch.inference_mode():
            found = self.reference.module(ids_1T, **given)
            hidden_TD = getattr(found, "last_hidden_state", found)[0].float()
            vector_D = COLLECTED[mode](hidden_TD)
            vector: NDArray[np.float32] = (vector_D / vector_D.norm()).numpy()
        return vector

    def set_mode(self, mode: str) -> None:
        """Write how texts become vectors, as sentence-transformers does."""
        modules = [
            {"idx": i, "name": str(i), "path": f"{i}_{name}" * (i > 0), "type": f"models.{name}"}
            for i, name in enumerate(MODULES)
        ]
        (self.folder / "modules.json").write_text(json.dumps(modules))
        (self.folder / "1_Pooling").mkdir(exist_ok=True)
        config = {f"pooling_mode_{each}": each == mode for each in COLLECTED}
        (self.folder / "1_Pooling" / "config.json").write_text(json.dumps(config))

    def problems(
        self, mode: str, texts: Sequence[Tokens], *, pairs: bool = False, alone: bool = False
    ) -> Iterator[str]:
        """Where vectors differ from the reference's."""
        self.set_mode(mode)
        seconds = [len(text) // 2 for text in texts] if pairs else None
        found = self.vectors(texts, seconds=seconds, alone=alone)
        for number, (text, vector) in enumerate(zip(texts, found, strict=True)):
            expected = self.expected(text, mode, None if seconds is None else seconds[number])
            error = float(np.abs(vector - expected).max())
            if not error <= MAX_DIFFERENCE:
                yield f"text {number} of {len(text)} tokens differs by {error:.1e}"

    def put(self, fault: Fault) -> EmbedTrial:
        """A trial with the fault in it."""
        host, overrides = fault.host_like(self.host), dict(fault.hf_overrides)
        return replace(self, host=host, options={**self.options, "hf_overrides": overrides})


def check_embedder(host: PluginHost, architecture: str) -> list[Check]:
    """Try each variant of an architecture that embeds, in float32 on the CPU."""
    capabilities: ModelCapabilities = host.models.info(architecture).metadata["capabilities"]
    checks: list[Check] = []
    for name, variant in variants_of(capabilities).items():
        title = f"model {architecture!r}, {name}"
        target = variant.reference or capabilities.reference
        if target is None:
            checks.append(unclaimed(f"{title}: has a reference", "the plugin names none"))
            continue
        with TemporaryDirectory(prefix="octavo-kit-") as folder, calm():
            try:
                reference = write_with_reference(Path(folder), architecture, target, variant)
            except FAILURES as error:
                detail = one_line(error)
                checks.append(Check(name=f"{title}: can be tried", passed=False, detail=detail))
                continue
            trial = EmbedTrial(
                folder=Path(folder),
                host=host,
                architecture=architecture,
                reference=reference,
                options={},
            )
            checks += _checks(title, trial, variant)
    return checks


def _checks(title: str, trial: EmbedTrial, variant: Variant) -> Iterator[Check]:
    texts = _texts(trial)
    for mode in COLLECTED:
        name = f"{title}: vectors ({mode}) equal those of {trial.reference.name}"
        plain = tried(name, trial.problems(mode, texts, alone=True))
        yield plain
        if not plain.passed:
            return
        yield tried(f"{title}: {mode}, packed", trial.problems(mode, texts))
    yield tried(f"{title}: in another order", trial.problems("mean_tokens", texts[::-1]))
    config = json.loads((trial.folder / "config.json").read_bytes())
    has_types = config.get("type_vocab_size", 0) > 1
    if has_types:
        yield tried(f"{title}: as pairs", trial.problems("mean_tokens", texts, pairs=True))
    epsilons = other_epsilons(config)
    faults: dict[str, Fault | None] = {
        "a neighbour that is seen": Fault(attention=SeesNeighbours),
        "attention in the other direction": Fault(attention=SeesBeforeAlone),
        "a wrong epsilon of norms": Fault(hf_overrides=epsilons) if epsilons else None,
        **own_faults(variant.without),
    }
    for mistake, fault in faults.items():
        if fault is not None:
            name = f"{title}: the kit notices {mistake}"
            yield _noticed(name, trial.put(fault), texts, has_types)


def _noticed(name: str, trial: EmbedTrial, texts: Sequence[Tokens], pairs: bool) -> Check:
    try:
        problem = next(trial.problems("mean_tokens", texts, pairs=pairs), None)
    except FAILURES as error:
        problem = one_line(error)
    detail = "" if problem else "it does not show"
    return Check(name=name, passed=problem is not None, detail=detail)


def _texts(trial: EmbedTrial) -> list[Tokens]:
    config = engine_config(trial.folder, model_impl=trial.architecture)
    folder = open_model(config.model, trial.host)
    # No text has the padding's token, whose place some references leave out.
    known = np.delete(np.arange(folder.vocab_size), folder.config.get("pad_token_id") or 0)
    generator = np.random.default_rng(0)
    lengths = (*PROMPT_LENGTHS, folder.max_model_len)
    return [tuple(generator.choice(known, size=length).tolist()) for length in lengths]


def _packed(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, np.int32).tobytes()
