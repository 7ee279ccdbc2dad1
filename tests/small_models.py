"""Tiny checkpoints of Transformers, and the models that Octavo makes of them: whole or in parts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from octavo.layers.adapted import AdapterRows
from octavo.messages import LinearSize
from octavo.testing.comparison import compare
from octavo.testing.model import make_trial
from octavo.testing.reference import ModuleReference, write_with_reference
from octavo.testing.step_building import StepBuilder
from octavo.testing.variants import Variant, variants_of
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry import AttentionBackend, PluginHost
from octavo_registry.model import ModelSpec

HOST = PluginHost.discover()
TOKENS = tuple(range(7, 55))
GPU: Mapping[str, Any] = {"device": "cuda:0", "kv_cache_memory_gib": 0.1}
"""Engine options: tests that run at a time share a device, of which one would take nearly all."""

TEXT_MODELS = [
    name
    for name in HOST.models.names()
    if name not in ("transformers", "Mamba2ForCausalLM")
    and not HOST.models.info(name).metadata["capabilities"].modalities
    and "generate" in HOST.models.info(name).metadata["capabilities"].tasks
]
"""Others have tests of their own: those that take media, with ``media_equality``, those that embed,
and the one whose layers keep no keys."""

Case = tuple[str, str]
"""An architecture and the name of one of its variants."""


def cases_of(*architectures: str) -> dict[Case, Variant]:
    """All variants that the plugins of these architectures give to the conformance kit."""
    return {
        (architecture, name): variant
        for architecture in architectures
        for name, variant in variants_of(
            HOST.models.info(architecture).metadata["capabilities"]
        ).items()
    }


def assert_windows_give_blocks_back(
    case: Case, variant: Variant, folder: Path, *, num_blocks: int
) -> None:
    """A sequence of 120 tokens in blocks of 8 is right in a pool that could not keep them all."""
    trial = make_trial(HOST, case[0], variant, folder)
    with trial.engine(
        num_blocks=num_blocks, async_depth=1, max_num_batched_tokens=8, enable_prefix_caching=False
    ) as engine:
        found = engine.generate([trial.prompts[-1]], max_tokens=57)
        assert engine.count("num_preemptions") == 0
    assert len(found[0].prompt + found[0].tokens) == 120
    comparison = compare(found, trial.reference)
    assert comparison.passed, comparison.as_text()


class Checkpoint:
    """A reference as it is saved; ``config`` and ``tensors`` may be changed before loading."""

    def __init__(self, case: Case, variant: Variant, folder: Path) -> None:
        self.architecture = case[0]
        target = variant.reference or f"transformers:{self.architecture}"
        self.reference: ModuleReference = write_with_reference(
            folder, self.architecture, target, variant
        )
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        self.tensors = load_file(folder / "model.safetensors")

    def model(self, **changes: Any) -> Any:
        spec = ModelSpec(
            **{
                "architecture": self.architecture,
                "config": self.config,
                "dtype": torch.float32,
                "device": torch.device("cpu"),
                "max_model_len": 128,
                **changes,
            }
        )
        return HOST.models.load(self.architecture)(spec)

    def loaded(self, **changes: Any) -> Any:
        model = self.model(**changes)
        found = model.load(iter(self.tensors.items()))
        assert found == {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return model

    def linears(self) -> dict[str, LinearSize]:
        """What adapters can change."""
        rows = AdapterRows(1, 1, experts=True)
        self.model(device=torch.device("meta"), adapters=rows)
        return rows.linears

    def check(self, logits_TV: Tensor) -> None:
        """These are the logits after each of ``TOKENS``."""
        (expected,) = self.reference.logprobs([TOKENS])
        found_TV = logits_TV.log_softmax(-1)[:-1]
        torch.testing.assert_close(found_TV, torch.from_numpy(expected), atol=1e-4, rtol=1e-4)


def run_stages(stages: Sequence[Any], backend: AttentionBackend | None = None) -> Tensor:
    """The logits after each of ``TOKENS``, by one pipeline stage after the other."""
    specs = {name: spec for stage in stages for name, spec in stage.cache_specs().items()}
    builder = StepBuilder(specs, backend or TorchAttention())
    step = builder.step([(builder.add_row(), len(TOKENS))])
    with torch.inference_mode():
        x_TD = stages[0].embed(torch.tensor(TOKENS), None)
        for stage in stages:
            x_TD = stage.forward(x_TD, step)
        logits_TV: Tensor = stages[-1].logits(x_TD)
    return logits_TV


def run_rank_models(checkpoint: Checkpoint, tp_size: int) -> list[Tensor]:
    """The logits after each of ``TOKENS`` on each tensor parallel rank."""
    return run_ranks(
        tp_size,
        lambda ranks: run_stages(
            [checkpoint.loaded(tp_rank=ranks.rank, tp_size=tp_size, collectives=ranks)]
        ),
    )


def assert_parts_equal_transformers(case: Case, variant: Variant, folder: Path) -> None:
    """The whole model, two pipeline stages, and two tensor parallel ranks."""
    checkpoint = Checkpoint(case, variant, folder)
    checkpoint.check(run_stages([checkpoint.loaded()]))
    checkpoint.check(
        run_stages([checkpoint.loaded(last_layer=1), checkpoint.loaded(first_layer=1)])
    )
    for logits_TV in run_rank_models(checkpoint, 2):
        checkpoint.check(logits_TV)


def run_ranks(tp_size: int, run: Callable[[RankCollectives], Tensor]) -> list[Tensor]:
    """What ``run`` returns on each tensor parallel rank; ranks are threads of this process."""
    group = RankGroup(tp_size)
    found: dict[int, Tensor] = {}

    def run_rank(rank: int) -> None:
        torch.set_num_threads(1)
        found[rank] = run(RankCollectives(group, rank))

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(tp_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(tp_size)]


class RankCollectives:
    """One thread's view of its group."""

    def __init__(self, group: RankGroup, rank: int) -> None:
        self._group, self.rank = group, rank

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._group.exchange(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._group.exchange(self.rank, x), dim=-1)


class RankGroup:
    """Threads that exchange tensors."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._given: list[Tensor | None] = [None] * size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self._given[rank] = x
        self._barrier.wait(timeout=30)
        given = [tensor.clone() for tensor in self._given if tensor is not None]
        self._barrier.wait(timeout=30)
        return given
