"""Layers whose state is of fixed size: what tokens make of it, row by row, in plain torch.

Axis suffixes: R rows, T tokens of the step, Q tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from octavo_registry.step import StateStep, StateView

Tensors = tuple[Tensor, ...]
Advance = Callable[[Tensors, Tensors], tuple[Tensors, Tensor]]
"""Takes rows' states and what a token of each adds; gives the states behind it, and its result."""
AdvanceMany = Callable[[Tensors, Tensors, Tensor], tuple[Tensors, Tensor]]
"""Takes rows' states, what several tokens of each add [R, Q, ...], and how many of these there are,
which may be 0; gives the states behind those, and results [R, Q, ...] of which others are nobody's.
"""

BLOCK_TOKENS = 64
"""Tokens of a row that are taken at a time, where a layer can take many."""


def scan(
    view: StateView,
    step: StateStep,
    entries: Tensors,
    advance: Advance,
    many: AdvanceMany | None = None,
) -> Tensor:
    """What a layer gives for each token of a step [T, ...]; its lines are brought behind the step.

    ``entries`` [T, ...] are what the tokens add, as the log keeps them. States follow from nothing
    else, and no row's from the others'. ``many`` is for prompts, which take long token by token.
    """
    lines_R = step.lines_R.long()
    states = tuple(each.index_select(0, lines_R) for each in view.tensors)
    num_logged = view.log[0].shape[1]
    for place in range(num_logged):
        logged = tuple(each[:, place].index_select(0, lines_R) for each in view.log)
        states = _where(step.num_logged_R > place, advance(states, logged)[0], states)
    results = _Results(entries[0])
    starts_R, lens_R = step.query_starts_R1[:-1].long(), step.query_starts_R1.diff()
    final_R, most_final_R = step.num_final_R, step.bounds.query_lens_R - num_logged
    block = 1 if many is None else BLOCK_TOKENS
    for first in range(0, int(most_final_R.max()), block):
        rows_A = torch.from_numpy(np.flatnonzero(most_final_R > first)).to(lines_R.device)
        counts_A = (final_R[rows_A] - first).clamp(0, block)
        places_Q = torch.arange(block, device=lines_R.device)
        is_there_AQ = places_Q < counts_A[:, None]
        tokens_AQ = torch.where(is_there_AQ, starts_R[rows_A, None] + first + places_Q, 0)
        added = tuple(each[tokens_AQ] for each in entries)
        some = tuple(each[rows_A] for each in states)
        if many is not None:
            behind, given_AQ = many(some, added, counts_A)
        else:
            behind, given_A = advance(some, tuple(each[:, 0] for each in added))
            behind, given_AQ = _where(counts_A > 0, behind, some), given_A[:, None]
        for state, each in zip(states, behind, strict=True):
            state[rows_A] = each
        results.put(tokens_AQ.flatten(), is_there_AQ.flatten(), given_AQ.flatten(0, 1))
    for kept, state in zip(view.tensors, states, strict=True):
        kept.index_copy_(0, lines_R, state)
    for place in range(min(num_logged, int(step.bounds.query_lens_R.max()))):
        is_there_R = final_R + place < lens_R
        tokens_R = torch.where(is_there_R, starts_R + final_R + place, 0)
        added = tuple(each.index_select(0, tokens_R) for each in entries)
        for log, each in zip(view.log, added, strict=True):
            log[:, place].index_copy_(0, lines_R, each)
        states, given_R = advance(states, added)
        results.put(tokens_R, is_there_R, given_R)
    return results.tensor()


class _Results:
    """Results by token; those that are nobody's go behind the last."""

    def __init__(self, entry_T: Tensor) -> None:
        self._num_tokens = len(entry_T)
        self._given: Tensor | None = None

    def put(self, tokens: Tensor, is_there: Tensor, given: Tensor) -> None:
        if self._given is None:
            self._given = given.new_empty(self._num_tokens + 1, *given.shape[1:])
        self._given.index_copy_(0, torch.where(is_there, tokens, self._num_tokens), given)

    def tensor(self) -> Tensor:
        assert self._given is not None, "a step has a token"
        return self._given[:-1]


def _where(counts_R: Tensor, new: Tensors, old: Tensors) -> Tensors:
    return tuple(
        torch.where(counts_R.view(-1, *[1] * (each.dim() - 1)), each, before)
        for each, before in zip(new, old, strict=True)
    )
