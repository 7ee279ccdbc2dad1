"""Executors: they own the workers of one engine, and run planned steps on them in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorFacts:
    """What the scheduler must know of the workers; equal on all of them."""

    layout: Any
    """An ``octavo.cache.groups.CacheLayout``."""
    state: Any
    """An ``octavo.steps.layout.StateLayout``."""
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    num_lines: int = 0
    """Lines of recurrent state, reserved ones included; 0: no layer has such a state."""
    num_swap_lines: int = 0
    max_step_tokens: int | None = None
    """Tokens that a step of whole texts has at most; the layout then has no page, and there are no
    blocks and no state. None: the model writes."""
    adapters: Any | None = None
    """An ``octavo.messages.AdapterFacts``; None: there is no room for adapters."""
    masks_on_device: bool = False
    """Whether the device makes the masks of byte automata sooner than the host others."""
    most_recorded_queries: int = 0
    """Tokens of a row that a recorded step may have; 0: no step may be recorded."""


class PendingStep(Protocol):
    """A step that was launched."""

    def ends_within(self, seconds: float) -> bool:
        """Whether ``result`` need not be waited for, or no sign of progress can be had before it.

        False after so long if the step has come further meanwhile, which is told to clients; it
        goes on waiting for one that has not, so that a step that hangs is seen to hang.
        """
        ...

    def result(self) -> Any:
        """Wait for the step; its ``octavo.steps.plan.StepResult``, or raise what it raised."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Built with (config: EngineConfig, folder: ModelFolder, host: PluginHost), once an engine."""

    def start(self) -> ExecutorFacts:
        """Load the model and make the cache on every worker; called once."""
        ...

    def submit(self, plan: Any) -> PendingStep:
        """Launch a StepPlan behind those under way and return at once.

        Steps run in the order of submission. A step that raises must leave the device fit for the
        next; an error after which no step can run is an ``EngineDeadError``.
        """
        ...

    def mask(self, masks: Any) -> None:
        """Let the newest step sample its tokens, by the TokenMasks that its plan says it awaits.

        Called once before anything else is submitted, also for a step that has raised.
        """
        ...

    def use_idle_time(self) -> bool:
        """Prepare something for later steps, some milliseconds' work; False if nothing is left.

        Called while no request is there, until one comes; after False once a second, so that a
        worker that has ended is seen: that raises ``EngineDeadError``.
        """
        ...

    def close(self) -> None:
        """End the workers and free their memory; calling twice does nothing."""
        ...
