"""The running sequences on the device: one int32 arena, seen through a view per field."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.execution.state_layout import FLOAT_FIELDS, INT_FIELDS, StateLayout
from octavo.sampling.state import SamplingState


class DeviceState:
    """Persists over steps: the host sends what changed, the device adds what it draws."""

    def __init__(self, layout: StateLayout, device: torch.device) -> None:
        self.layout = layout
        self.arena = torch.zeros(layout.num_words, dtype=torch.int32, device=device)
        self.tokens_SL = self._view("tokens")
        self.num_tokens_S = self._view("num_tokens")
        self.computed_S = self._view("computed")
        self.adapter_S = self._view("adapter")
        self.tables_SB = [self._view(f"table{group}") for group in range(layout.num_groups)]
        self.sampling = SamplingState(
            tokens_SL=self.tokens_SL,
            num_tokens_S=self.num_tokens_S,
            prompt_len_S=self._view("prompt_len"),
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
        self.arena.index_copy_(0, indices.long(), values)

    def advance(
        self, slots_R: Tensor, query_lens_R: Tensor, drawn_R: Tensor, tokens_R: Tensor | None
    ) -> None:
        """Count what the step has computed, and append what it has drawn."""
        self.computed_S.index_add_(0, slots_R, query_lens_R)
        if tokens_R is not None:
            positions = self.num_tokens_S.index_select(0, drawn_R)
            self.tokens_SL[drawn_R, positions.long()] = tokens_R.to(torch.int32)
            self.num_tokens_S.index_copy_(0, drawn_R, positions + 1)

    def _view(self, name: str) -> Tensor:
        field = self.layout.fields[name]
        num_slots = self.layout.num_slots
        words = self.arena[field.offset : field.offset + num_slots * field.width]
        words = words.view(torch.float32) if field.is_float else words
        scalar = name in INT_FIELDS or name in FLOAT_FIELDS
        return words if scalar else words.view(num_slots, field.width)
