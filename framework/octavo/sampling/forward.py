"""What a step leaves on the device, before and after its tokens are sampled.

Axis suffixes: R rows, K tokens that a row yields, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo.layers.adapted import AdapterSpans
from octavo.sampling.logprobs import TokenLogprobTensors
from octavo.sampling.vectors import Vectors
from octavo.steps.plan import StepPlan
from octavo.steps.sharing import SharedTokens


@dataclass(slots=True)
class Sampled:
    """A step's results on the device."""

    tokens_RK: Tensor | None = None
    """As in ``StepResult``; None: no row samples."""
    counts_R: Tensor | None = None
    logprobs: TokenLogprobTensors | None = None
    prompt_logprobs: TokenLogprobTensors | None = None
    unusable_RK: Tensor | None = None
    vectors: Vectors | None = None


@dataclass(slots=True, kw_only=True)
class Forward:
    """A step whose forward pass was launched."""

    plan: StepPlan
    hidden_RD: Tensor
    slots_R: Tensor
    query_starts_R1: Tensor
    sample_slots_R: Tensor
    """Where the rows are that sample."""
    prompt_targets: Tensor
    spans: AdapterSpans | None
    """Ranks of the rows of ``hidden_RD``; None: no row has an adapter."""
    shared: SharedTokens | None = None
    """Rows of logits of rows with drafts; None: each row that samples has one."""

    @property
    def logit_slots_T(self) -> Tensor:
        """The slot of each row of logits by which a token is sampled."""
        return self.sample_slots_R if self.shared is None else self.shared.slots_T
