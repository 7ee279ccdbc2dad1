"""The running sequences on the device: one int32 arena, seen through a view per field."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.steps.layout import StateLayout
from octavo.steps.slot_fields import FLOAT_FIELDS, INT_FIELDS
from octavo_kernels.byte_automaton import AutomatonStates
from octavo_kernels.sample import SamplingState
from octavo_kernels.step_state import DraftRows, StepInputs, accept_, scatter_words_, step_inputs


class DeviceState:
    """Persists over steps: the host sends what changed, the device adds what it samples."""

    def __init__(self, layout: StateLayout, device: torch.device) -> None:
        self.layout = layout
        self.arena = torch.zeros(layout.num_words, dtype=torch.int32, device=device)
        self.tokens_SL = self._view("tokens")
        self.num_tokens_S = self._view("num_tokens")
        self.computed_S = self._view("computed")
        self.adapter_first_S = self._view("adapter_first")
        self.adapter_rank_S = self._view("adapter_rank")
        self.position_delta_S = self._view("position_delta")
        self.cross_rows_S = self._view("cross_rows")
        self.automata = AutomatonStates(
            at_S=self._view("automaton"),
            state_S=self._view("automaton_state"),
            depth_S=self._view("automaton_depth"),
            stack_SD=self._view("automaton_stack"),
        )
        self.tables_SB = [self._view(f"table{group}") for group in range(layout.num_groups)]
        self.sampling = SamplingState(
            tokens_SL=self.tokens_SL,
            num_tokens_S=self.num_tokens_S,
            prompt_len_S=self._view("prompt_len"),
            features_S=self._view("features"),
            temperature_S=self._view("temperature"),
            top_p_S=self._view("top_p"),
            min_p_S=self._view("min_p"),
            presence_S=self._view("presence"),
            frequency_S=self._view("frequency"),
            repetition_S=self._view("repetition"),
            top_k_S=self._view("top_k"),
            seed_S2=self._view("seed"),
            min_len_S=self._view("min_len"),
            stop_ids_SK=self._view("stop_ids"),
        )

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
            self.computed_S,
            self.tokens_SL,
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
            self.computed_S,
            sample_slots_N,
            sampled_T,
            self.num_tokens_S,
            self.tokens_SL,
            drafts=drafts,
            padding_slot=self.layout.padding_slot,
        )

    def _view(self, name: str) -> Tensor:
        field = self.layout.fields[name]
        num_lines = self.layout.num_slots + 1
        words = self.arena[field.offset : field.offset + num_lines * field.width]
        words = words.view(torch.float32) if field.is_float else words
        scalar = name in INT_FIELDS or name in FLOAT_FIELDS
        return words if scalar else words.view(num_lines, field.width)
