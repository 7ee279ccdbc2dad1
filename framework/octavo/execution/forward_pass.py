"""A model's forward pass over a step's tokens, with what it reads of the device state.

Axis suffixes: T tokens of the step, R rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from octavo.cache.groups import CacheLayout
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.cut_rows import AttentionRows, cut_rows
from octavo.layers.adapted import NO_SITES, AdapterRows, AdapterSpans, SiteKinds
from octavo.steps.device_state import DeviceState
from octavo.steps.loads import RowCuts
from octavo_kernels.step_state import StepInputs
from octavo_registry.attention import AttentionBackend
from octavo_registry.model import Model
from octavo_registry.step import AttentionStep, MediaRows, Step, StepBounds


class ForwardPass:
    """Ids of rows to hidden states; keys and values go to the cache."""

    def __init__(
        self,
        *,
        model: Model,
        state: DeviceState,
        layout: CacheLayout,
        memory: CacheMemory,
        backends: Sequence[AttentionBackend | None],
        adapters: AdapterRows | None,
        batch_invariant: bool,
        position_axes: int,
    ) -> None:
        self._model = model
        self._state = state
        self._layout = layout
        self._memory = memory
        self._backends = list(backends)
        self.layers = memory.layer_caches(layout, self._backends)
        self._adapters = adapters
        self._batch_invariant = batch_invariant
        self._position_axes = position_axes

    @property
    def most_hidden_queries(self) -> int:
        """Tokens of a row up to which backends need not be told how many there are."""
        numbers = (each.most_recorded_queries for each in self._backends if each is not None)
        return min(numbers, default=0)

    def spans_in_state(self, sites: SiteKinds) -> AdapterSpans:
        """The rank rows of all slots."""
        return AdapterSpans(self._state["adapter_first"], self._state["adapter_rank"], sites)

    def decode(self, slots_R: Tensor, sites: SiteKinds) -> Tensor:
        """The hidden states of rows of one token each; follows from the device state alone."""
        num_rows = len(slots_R)
        longest = np.full(num_rows, self._state.layout.max_model_len, np.int32)
        bounds = StepBounds(query_lens_R=np.ones(num_rows, np.int32), context_lens_R=longest)
        starts_R1 = self._state.one_each_R1[: num_rows + 1]
        return self.run(slots_R, starts_R1, starts_R1[:-1], bounds, sites=sites)

    def run(
        self,
        slots_R: Tensor,
        query_starts_R1: Tensor,
        logit_tokens_R: Tensor,
        bounds: StepBounds,
        *,
        num_tokens: int | None = None,
        positions: Tensor | None = None,
        media: MediaRows | None = None,
        cuts: RowCuts | None = None,
        sites: SiteKinds = NO_SITES,
    ) -> Tensor:
        """Ids to hidden states [T, D], of which those of ``logit_tokens_R`` are whole.

        There are ``num_tokens``, or as many as the bounds say.
        """
        block_tokens = self._layout.block_tokens
        if num_tokens is None:
            num_tokens = int(bounds.query_lens_R.sum())
        inputs = self._state.inputs(
            slots_R, query_starts_R1, num_tokens=num_tokens, block_tokens=block_tokens
        )
        rows = AttentionRows(query_starts_R1, inputs.context_lens_R, inputs.rows_T, slots_R, bounds)
        if cuts is not None:
            rows = cut_rows(rows, cuts, inputs.positions_T)
        groups = []
        for index, backend in enumerate(self._backends):
            spec = self._layout.groups[index].spec
            most_rows = spec.rows
            seen = rows if most_rows is None else self._across(rows, most_rows)
            group = AttentionStep(
                block_tokens=self._layout.groups[index].block_tokens,
                query_starts_R1=rows.query_starts_R1,
                context_lens_R=seen.context_lens_R,
                token_rows_T=rows.token_rows_T,
                positions_T=inputs.positions_T,
                table_SB=self._state.tables_SB[index],
                table_rows_R=rows.table_rows_R,
                slots_T=inputs.cache_slots[index],
                bounds=seen.bounds,
                batch_invariant=self._batch_invariant,
            )
            if backend is not None:  # else all its layers live on other ranks
                group.prepared = backend.prepare(group, spec)
            groups.append(group)
        # Adapters are known by token. Up to half, what is gathered takes less than is left out.
        only_sampled = not sites and 2 * len(logit_tokens_R) <= num_tokens
        step = Step(
            num_tokens=num_tokens,
            num_rows=len(slots_R),
            query_starts_R1=query_starts_R1,
            bounds=bounds,
            positions_AT=self._positions(inputs, slots_R, positions),
            groups=tuple(groups),
            layers=self.layers,
            sample_tokens_R=logit_tokens_R,
            state=None
            if (states := self._memory.states) is None
            else states.begin(self._state, slots_R, inputs.rows_T, query_starts_R1, bounds),
            states={} if states is None else states.views,
            media=media,
            only_sampled=only_sampled,
        )
        if self._adapters is not None:
            self._adapters.end()
            if sites:
                slots_T = slots_R.index_select(0, inputs.rows_T)
                self._adapters.begin(self.spans_in_state(sites).at(slots_T))
        return self._model.forward(self._model.embed(inputs.ids_T, media), step)

    def _across(self, rows: AttentionRows, most_rows: int) -> AttentionRows:
        """Rows whose context are the rows of encoded media that they see."""
        context_lens_R = self._state["cross_rows"].index_select(0, rows.table_rows_R)
        query_lens_R = rows.bounds.query_lens_R
        return rows._replace(
            context_lens_R=context_lens_R.clamp_(min=1),  # the padding slot has none
            bounds=StepBounds(
                query_lens_R=query_lens_R,
                context_lens_R=np.full(len(query_lens_R), most_rows, np.int32),
            ),
        )

    def _positions(self, inputs: StepInputs, slots_R: Tensor, given: Tensor | None) -> Tensor:
        """As the model rotates tokens: their numbers, or what the prompt's media make of them."""
        if given is not None and len(given):
            return given.view(self._position_axes, -1).long()
        if self._position_axes == 1:
            return inputs.positions_T.unsqueeze(0)
        deltas_R = self._state["position_delta"].index_select(0, slots_R)
        positions_T = inputs.positions_T + deltas_R.index_select(0, inputs.rows_T)
        return positions_T.expand(self._position_axes, -1)
