"""Mechanisms that the kit switches off, to see that its comparison notices.

Each fault goes in at a seam of the contract: around the attention backend, around the executor,
behind the model's ``load``, or as an override of config.json. The engine and the model know nothing
of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor

from octavo.model_folder import open_model
from octavo.testing.comparison import Comparison
from octavo.testing.modes import Mode, Trial, engine_config, forked, in_a_batch, with_mistake
from octavo.testing.variants import SwitchOff, is_epsilon
from octavo.weights.load import load_model
from octavo_registry import (
    AttentionBackend,
    AttentionStep,
    CacheSpec,
    LazyRegistry,
    PluginHost,
    StoresRows,
)
from octavo_registry.executor import Executor, ExecutorFacts, PendingStep

if TYPE_CHECKING:
    from octavo.testing.media_trial import MediaTrial

T = TypeVar("T")
TrialT = TypeVar("TrialT", bound="Trial | MediaTrial")

SHIFTED_POSITION: Final = 5
NO_BLOCK: Final = 0
"""Block 0 belongs to no sequence."""


class BackendFault:
    """A backend that passes everything on to another."""

    most_recorded_queries = 0
    batch_invariant = False

    def __init__(self, inner: AttentionBackend) -> None:
        self._inner = inner

    def supports(self, spec: CacheSpec, device: torch.device) -> str | None:
        """Ask the backend within."""
        return self._inner.supports(self.told(spec), device)

    def page_bytes(self, spec: CacheSpec, block_tokens: int) -> int:
        """Ask the backend within."""
        return self._inner.page_bytes(self.told(spec), block_tokens)

    def views(self, pages: Tensor, spec: CacheSpec, block_tokens: int) -> Any:
        """Ask the backend within."""
        return self._inner.views(pages, self.told(spec), block_tokens)

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Let the backend within prepare."""
        return self._inner.prepare(step, self.told(spec))

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """Let the backend within attend."""
        return self._inner.attend(*args, **kwargs)

    def store(self, *args: Any) -> None:
        """Let the backend within store."""
        assert isinstance(self._inner, StoresRows)
        self._inner.store(*args)

    def told(self, spec: CacheSpec) -> CacheSpec:
        """What the other backend is told of a layer's cache."""
        return spec


class IgnoredWindow(BackendFault):
    """Every query sees every earlier position."""

    def attend(self, *args: Any, **kwargs: Any) -> Tensor:
        """Attend without the window."""
        return self._inner.attend(*args, **{**kwargs, "window": None})

    def told(self, spec: CacheSpec) -> CacheSpec:
        """Every token is kept."""
        return spec if spec.window is None else replace(spec, kind="full", window=None)


class StaleBlock(BackendFault):
    """The first row's last table entry names a block that is not the row's."""

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Change the table; keys and values still go to the right place."""
        last_1 = (step.context_lens_R[:1].long() - 1) // step.block_tokens
        step.table_SB = step.table_SB.clone()
        step.table_SB[step.table_rows_R[:1].long(), last_1] = NO_BLOCK
        return super().prepare(step, spec)


class WrongSlot(BackendFault):
    """One token of each sequence is stored in its neighbour's place."""

    def prepare(self, step: AttentionStep, spec: CacheSpec) -> Any:
        """Move that token's slot by one within its block."""
        step.slots_T = step.slots_T ^ (step.positions_T == SHIFTED_POSITION).long()
        return super().prepare(step, spec)


class SkippedCopies:
    """An executor that drops the block copies of a step: those that make forks independent."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

    def start(self) -> ExecutorFacts:
        """Start the executor within."""
        return self._inner.start()

    def submit(self, plan: Any) -> PendingStep:
        """Launch the step without its copies."""
        plan.moves.copy.clear()
        return self._inner.submit(plan)

    def mask(self, masks: Any) -> None:
        """Pass the masks on."""
        self._inner.mask(masks)

    def use_idle_time(self) -> bool:
        """Prepare what the executor within prepares."""
        return self._inner.use_idle_time()

    def close(self) -> None:
        """Close the executor within."""
        self._inner.close()


class SkippedLines(SkippedCopies):
    """An executor that drops copies of recurrent states: with these each sequence begins."""

    def submit(self, plan: Any) -> PendingStep:
        """Launch the step without them."""
        plan.moves.lines.clear()
        return self._inner.submit(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mechanism switched off, and the mode in which that must show."""

    attention: Callable[[AttentionBackend], AttentionBackend] | None = None
    executor: Callable[[Executor], Executor] | None = None
    model: Callable[[Any], Any] | None = None
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = in_a_batch

    def show(self, trial: Trial) -> Comparison:
        """The comparison in which it must show."""
        return with_mistake(self.mode, self.put_into(trial))

    def put_into(self, trial: TrialT) -> TrialT:
        """A trial on a host that is like its own, but for what the fault goes around."""
        options = {**trial.options, "hf_overrides": dict(self.hf_overrides)}
        return replace(trial, host=self.host_like(trial.host), options=options)

    def host_like(self, host: PluginHost) -> PluginHost:
        """A host that is like this one, but for what the fault goes around."""
        host = copy.copy(host)
        if self.attention is not None:
            host.attention_backends = _Wrapping(host.attention_backends, self.attention)
        if self.executor is not None:
            host.executors = _Wrapping(host.executors, self.executor)
        if self.model is not None:
            host.models = _Wrapping(host.models, self.model)
        return host


class _Wrapping(LazyRegistry[T]):
    """Another registry's names; what their targets make is wrapped."""

    def __init__(self, inner: LazyRegistry[T], wrap: Callable[[T], T]) -> None:
        super().__init__(inner.kind, faults=inner.faults)
        self._entries = inner._entries
        self._inner, self._wrap = inner, wrap

    def load(self, name: str) -> Callable[..., T]:
        """The target of that name, its result wrapped."""
        make = self._inner.bind(name, self._inner.load(name))
        return lambda *args, **kwargs: self._wrap(make(*args, **kwargs))


def faults_for(trial: Trial) -> dict[str, Fault | None]:
    """What can be switched off, by name; None where the configuration does not have it."""
    options = engine_config(trial.folder, **trial.options).model
    folder = open_model(options, trial.host)
    model = load_model(folder, trial.host, config=options, device=torch.device("cpu"))
    specs = model.cache_specs().values()
    has_window = any(spec.window is not None for spec in specs)
    has_state = any(spec.kind == "state" for spec in specs)
    has_blocks = any(spec.kind not in ("state", "none") for spec in specs)
    unscaled = without_rope_scaling(folder.config)
    epsilons = other_epsilons(folder.config)
    return {
        "an ignored window": Fault(attention=IgnoredWindow) if has_window else None,
        "a missing rope scaling": None if unscaled is None else Fault(hf_overrides=unscaled),
        "a wrong epsilon of norms": Fault(hf_overrides=epsilons) if epsilons else None,
        "a stale block": Fault(attention=StaleBlock) if has_blocks else None,
        "a wrong slot": Fault(attention=WrongSlot) if has_blocks else None,
        "a skipped copy-on-write": Fault(executor=SkippedCopies, mode=forked)
        if has_blocks
        else None,
        "a skipped copy of a state": Fault(executor=SkippedLines, mode=forked)
        if has_state
        else None,
    }


def own_faults(without: Mapping[str, SwitchOff]) -> dict[str, Fault | None]:
    """The mechanisms of a variant's own, each missing in turn."""
    return {
        f"a missing {name}": (
            Fault(hf_overrides=switch_off)
            if isinstance(switch_off, Mapping)
            else Fault(model=partial(_changed_once_loaded, change=switch_off))
        )
        for name, switch_off in without.items()
    }


def _changed_once_loaded(model: Any, change: Callable[[Any], None]) -> Any:
    """A model that ``change`` changes as its weights came, before anything packs them."""
    load = model.load

    def load_and_change(tensors: Any) -> set[str]:
        names: set[str] = load(tensors)
        change(model)
        return names

    model.load = load_and_change
    return model


def other_epsilons(config: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides that halve what norms add to a variance; empty: a config names none."""
    halved: dict[str, Any] = {
        name: value / 2 for name, value in config.items() if is_epsilon(name, value)
    }
    text = config.get("text_config")
    if isinstance(text, Mapping) and (within := other_epsilons(text)):
        halved["text_config"] = {**text, **within}
    return halved


def without_rope_scaling(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Overrides that take the scaling of rotary angles out of a config; None: it has none."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name) or {}
        plain = _unscaled(rope)
        if plain != rope:
            return {name: plain}
    return None


def _unscaled(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings with the default type; they may stand by kind of layer."""
    if any(isinstance(value, Mapping) for value in rope.values()):
        return {kind: _unscaled(value) for kind, value in rope.items()}
    if rope.get("rope_type", rope.get("type", "default")) == "default":
        return dict(rope)
    kept = {key: value for key, value in rope.items() if key != "type"}
    return {**kept, "rope_type": "default"}
