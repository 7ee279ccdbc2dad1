"""Names of recorded steps: what one does, and for how many rows."""

from __future__ import annotations

from typing import NamedTuple

from octavo_kernels.row_features import Work


class StepKind(NamedTuple):
    """What a recorded step does, whatever its rows."""

    samples: bool
    """Whether it samples too; else it ends with the hidden states, of which the host has a say."""
    work: Work = Work(0)
    """What its rows need of the sampler; nothing where it does not sample."""
    has_adapters: bool = False
    masked: bool = False
    """Whether it masks rows by their automata."""


class Recording(NamedTuple):
    """The key of a recorded step, on all ranks; it serves every step of up to so many rows."""

    kind: StepKind
    num_rows: int
    num_tokens: int
    """As many as rows: each has one."""
