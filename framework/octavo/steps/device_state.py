"""The running sequences on the device: one int32 arena, seen through a view per field."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from octavo.steps.layout import StateLayout
from octavo_kernels.byte_automaton import AutomatonStates
from octavo_kernels.sample import SamplingState
from octavo_kernels.step_state import DraftRows, StepInputs, accept_, scatter_words_, step_inputs


class DeviceState:
    """Persists over steps: the host sends what changed, the device adds what it samples.

    ``state["top_p"]`` is a field's tensor, a line a slot and the padding slot's last.
    """

    def __init__(self, layout: StateLayout, device: torch.device) -> None:
        self.layout = layout
        self.arena = torch.zeros(layout.num_words, dtype=torch.int32, device=device)
        self._views = {name: self._view(name) for name in layout.fields}
        self.tables_SB = [self[f"table{group}"] for group in range(layout.num_groups)]
        self.automata = AutomatonStates(
            at_S=self["automaton"],
            state_S=self["automaton_state"],
            depth_S=self["automaton_depth"],
            stack_SD=self["automaton_stack"],
        )
        self.one_each_R1 = torch.arange(layout.num_slots + 1, dtype=torch.int32, device=device)
        """Where the tokens of rows begin that have one each."""
        axes = {each.name.rpartition("_")[0]: each.name for each in fields(SamplingState)}
        self.sampling = SamplingState(
            **{axes[name]: view for name, view in self._views.items() if name in axes}
        )

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def apply(self, indices: Tensor, values: Tensor) -> None:
        """Write a step's diff."""
        scatter_words_(self.arena, indices, values)

    def inputs(
        self, slots_R: Tensor, query_starts_R1: Tensor, *, num_tokens: int, block_tokens: int
    ) -> StepInputs:
        """What the tokens of a step are and where they go."""
        return step_inputs(
            slots_R,
            query_starts_R1,
            self["computed"],
            self["tokens"],
            self.tables_SB,
            num_tokens=num_tokens,
            block_tokens=block_tokens,
        )

    def accept(
        self,
        slots_R: Tensor,
        query_starts_R1: Tensor,
        sample_slots_N: Tensor,
        sampled_T: Tensor,
        drafts: DraftRows | None = None,
    ) -> None:
        """Count what the step has computed, and append the samples that count."""
        accept_(
            slots_R,
            query_starts_R1,
            self["computed"],
            sample_slots_N,
            sampled_T,
            self["num_tokens"],
            self["tokens"],
            max_len_S=self["max_len"],
            drafts=drafts,
            padding_slot=self.layout.padding_slot,
        )

    def _view(self, name: str) -> Tensor:
        field = self.layout.fields[name]
        num_lines = self.layout.num_slots + 1
        words = self.arena[field.offset : field.offset + num_lines * field.width]
        words = words.view(torch.float32) if field.is_float else words
        return words.view(num_lines, field.width) if field.is_list else words
