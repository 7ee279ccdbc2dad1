"""What a step leaves on the device, before and after its tokens are sampled.

Axis suffixes: R rows, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo.layers.adapted import AdapterSpans
from octavo.sampling.logprobs import TokenLogprobTensors
from octavo.steps.plan import StepPlan


@dataclass(slots=True)
class Sampled:
    """A step's results on the device."""

    tokens_R: Tensor | None = None
    logprobs: TokenLogprobTensors | None = None
    prompt_logprobs: TokenLogprobTensors | None = None
    unusable_R: Tensor | None = None
    """As ``StepResult.unusable_RK``, of a token a row."""


@dataclass(slots=True, kw_only=True)
class Forward:
    """A step whose forward pass was launched."""

    plan: StepPlan
    hidden_RD: Tensor
    slots_R: Tensor
    query_starts_R1: Tensor
    sample_slots_R: Tensor
    prompt_targets: Tensor
    spans: AdapterSpans | None
    """Ranks of the rows of ``hidden_RD``; None: no row has an adapter."""
