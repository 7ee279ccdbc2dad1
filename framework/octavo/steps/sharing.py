"""Tokens of a step shared out on the device, among rows that may have drafts.

Axis suffixes: R rows of the step, T its tokens, M some of its rows, K tokens that a row yields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.steps.device_state import DeviceState
from octavo.steps.plan import StepPlan
from octavo_registry.step import StepBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTokens:
    """Rows of one known token each, and of drafts behind it: all of their tokens have logits.

    The last row is one of the padding slot, whose are the tokens that are left.
    """

    slots_R: Tensor
    starts_R1: Tensor
    """Where the tokens of each row begin, and where the last one's end."""
    slots_T: Tensor
    ahead_T: Tensor
    """Drafts of its row up to a token."""

    def bounds(self, state: DeviceState, plan: StepPlan) -> StepBounds:
        """What the host knows of the rows: all on a CPU, else the most there may be."""
        if self.starts_R1.device.type == "cpu":
            query_lens_R = self.starts_R1.diff()
            context_lens_R = state["computed"].index_select(0, self.slots_R) + query_lens_R
            return StepBounds(
                query_lens_R=query_lens_R.numpy(), context_lens_R=context_lens_R.numpy()
            )
        num_left = np.int32(plan.num_tokens - plan.num_rows)
        query_lens = np.full(plan.num_rows, plan.most_yield, np.int32)
        return StepBounds(
            query_lens_R=np.append(query_lens, num_left),
            context_lens_R=np.append(plan.context_lens, num_left),
        )

    def logits_of(self, rows_M: Tensor, most_yield: int) -> Tensor:
        """The row of logits [M * K] of each token that some rows may yield; what is none of theirs
        repeats their last.
        """
        first_M1, end_M1 = self.starts_R1[rows_M, None], self.starts_R1[rows_M + 1, None]
        tokens_MK = first_M1 + torch.arange(most_yield, device=first_M1.device)
        return torch.minimum(tokens_MK, end_M1 - 1).clamp_(min=0).flatten()

    def last_of(self, counts_R: Tensor) -> Tensor:
        """The row of logits of the last token that counts of each row."""
        return (self.starts_R1[:-1] + counts_R - 1).clamp_(min=0)


def share_out(
    state: DeviceState, slots_R: Tensor, *, num_tokens: int, most_yield: int, vocab_size: int
) -> SharedTokens:
    """Give each row its one token and the drafts that it has, the first rows first.

    No draft stands where its row could yield no token more, and each is a token of the vocabulary
    from here on. They are for one step: who drafts says again how many there are.
    """
    num_rows, device = len(slots_R), slots_R.device
    lens_R = state["num_tokens"].index_select(0, slots_R)
    room_R = state["max_len"].index_select(0, slots_R) - 1 - lens_R
    drafts_R = state["num_drafts"].index_select(0, slots_R).minimum(room_R)
    ends_R = drafts_R.clamp_(0, most_yield - 1).cumsum(0).clamp_(max=num_tokens - num_rows)
    starts_R1 = torch.arange(num_rows + 2, dtype=torch.int32, device=device)
    starts_R1[1:-1] += ends_R
    starts_R1[-1] = num_tokens
    slots_R = torch.cat([slots_R, slots_R.new_full((1,), state.layout.padding_slot)])
    tokens_T = torch.arange(num_tokens, dtype=torch.int32, device=device)
    rows_T = torch.searchsorted(starts_R1, tokens_T, right=True, out_int32=True) - 1
    slots_T = slots_R.index_select(0, rows_T)
    ahead_T = tokens_T - starts_R1.index_select(0, rows_T)
    positions_T = state["num_tokens"].index_select(0, slots_T) - 1 + ahead_T
    at_T = slots_T.long(), positions_T.clamp_(0, state.layout.max_model_len - 1).long()
    state["tokens"][at_T] = state["tokens"][at_T].clamp_(0, vocab_size - 1)
    state["num_drafts"].index_fill_(0, slots_R.long(), 0)
    return SharedTokens(slots_R=slots_R, starts_R1=starts_R1, slots_T=slots_T, ahead_T=ahead_T)
