"""One step on one device: apply the diff, run the model over the packed rows, draw the tokens.

Axis suffixes: T tokens of the step, R rows, D hidden, V vocabulary. The host never waits here on
CUDA: what it needs of a step it gets from ``Drawn`` one step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.groups import CacheLayout
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.device_state import DeviceState
from octavo.execution.processors import GuardedProcessor
from octavo.execution.staging import Staging
from octavo.execution.state_layout import StateLayout
from octavo.sampling.logprobs import TokenLogprobTensors, token_logprobs
from octavo.sampling.sampler import Sampler
from octavo.sampling.state import SampleBatch
from octavo.scheduling.plan import SECTIONS, StepPlan
from octavo_registry.attention import AttentionBackend
from octavo_registry.model import Model
from octavo_registry.step import AttentionStep, Step, StepBounds

LOGIT_ROWS = 512
"""Rows of prompt logits computed at a time: bounds their memory whatever the chunk."""


@dataclass(slots=True)
class Drawn:
    """A step's results on the device."""

    tokens_R: Tensor | None
    logprobs: TokenLogprobTensors | None
    prompt_logprobs: TokenLogprobTensors | None


class ModelRunner:
    """Runs planned steps in order on tensors that persist between them."""

    def __init__(
        self,
        *,
        model: Model,
        layout: CacheLayout,
        state_layout: StateLayout,
        memory: CacheMemory,
        backends: Sequence[AttentionBackend],
        vocab_size: int,
        processors: Sequence[GuardedProcessor],
        device: torch.device,
        async_depth: int,
    ) -> None:
        self.model = model
        self.state = DeviceState(state_layout, device)
        self.memory = memory
        self._layout = layout
        self._backends = list(backends)
        self._layers = memory.layer_caches(layout, self._backends)
        self._sampler = Sampler(vocab_size, self.state.sampling)
        self._processors = list(processors)
        self._staging = Staging(device, async_depth)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Drawn:
        """Launch a step; its results are ready when the device has come so far."""
        parts = dict(zip(SECTIONS, self._staging.send(plan.buffer).split(plan.sizes), strict=True))
        self.state.apply(parts["diff_indices"], parts["diff_values"])
        self.memory.move(plan.moves)
        self._change_attachments(plan)
        slots_R = parts["slots"].long()
        query_starts_R1 = parts["query_starts"]
        hidden_RD = self._forward(plan, parts, slots_R, query_starts_R1)
        drawn_slots_R = parts["sample_slots"].long()
        drawn = self._draw(plan, hidden_RD, drawn_slots_R, parts["prompt_targets"])
        self.state.advance(slots_R, query_starts_R1.diff(), drawn_slots_R, drawn.tokens_R)
        return drawn

    def _change_attachments(self, plan: StepPlan) -> None:
        for slot in plan.detach:
            for processor in self._processors:
                processor.detach(slot)
        for slot, sampling in plan.attach:
            self._sampler.attach(slot, sampling)
            for processor in self._processors:
                processor.attach(slot, sampling.extra_args)

    def _forward(
        self, plan: StepPlan, parts: dict[str, Tensor], slots_R: Tensor, query_starts_R1: Tensor
    ) -> Tensor:
        """Ids to the hidden states whose logits are asked for."""
        state = self.state
        rows_T = parts["token_rows"].long()
        computed_R = state.computed_S.index_select(0, slots_R)
        positions_T = (computed_R.index_select(0, rows_T) + parts["token_offsets"]).long()
        ids_T = state.tokens_SL[slots_R.index_select(0, rows_T), positions_T].long()
        bounds = StepBounds(query_lens_R=plan.query_lens, context_lens_R=plan.context_lens)
        context_lens_R = computed_R + query_starts_R1.diff()
        block_tokens = self._layout.block_tokens
        max_blocks = -(-int(plan.context_lens.max()) // block_tokens)
        groups = []
        for group, table_SB in enumerate(state.tables_SB):
            table_RB = table_SB[:, :max_blocks].index_select(0, slots_R)
            blocks_T = table_RB[rows_T, positions_T // block_tokens].long()
            step = AttentionStep(
                block_tokens=block_tokens,
                query_starts_R1=query_starts_R1,
                context_lens_R=context_lens_R,
                token_rows_T=rows_T,
                positions_T=positions_T,
                block_table_RB=table_RB,
                slots_T=blocks_T * block_tokens + positions_T % block_tokens,
                bounds=bounds,
            )
            step.plan = self._backends[group].plan(step, self._layout.groups[group].spec)
            groups.append(step)
        logit_tokens = parts["logit_tokens"].long()
        model_step = Step(
            num_tokens=plan.num_tokens,
            num_rows=plan.num_rows,
            positions_AT=positions_T.unsqueeze(0),
            groups=tuple(groups),
            layers=self._layers,
            sample_tokens_R=logit_tokens,
        )
        x_TD = self.model.embed(ids_T, model_step.media)
        x_TD = self.model.forward(x_TD, model_step)
        return x_TD.index_select(0, logit_tokens)

    def _draw(self, plan: StepPlan, hidden_RD: Tensor, slots_R: Tensor, targets: Tensor) -> Drawn:
        """Hidden states to tokens; prompt rows stand behind the rows that draw."""
        num_draws = len(plan.features)
        drawn = Drawn(None, None, None)
        if num_draws:
            logits_RV = self.model.logits(hidden_RD[:num_draws])
            for processor in self._processors:
                logits_RV = processor.apply(logits_RV, slots_R)
            sampled = self._sampler.sample(
                logits_RV,
                SampleBatch(
                    slots_R=slots_R,
                    features_R=plan.features,
                    num_logprobs=plan.num_logprobs,
                    max_top_k=plan.max_top_k,
                    max_num_tokens=plan.max_num_tokens,
                ),
            )
            drawn.tokens_R, drawn.logprobs = sampled.tokens_R, sampled.logprobs
        if plan.num_prompt_logprobs >= 0:
            pieces = [
                token_logprobs(self.model.logits(rows), wanted, plan.num_prompt_logprobs)
                for rows, wanted in zip(
                    hidden_RD[num_draws:].split(LOGIT_ROWS), targets.split(LOGIT_ROWS), strict=True
                )
            ]
            drawn.prompt_logprobs = TokenLogprobTensors(
                token_ids_RK1=torch.cat([piece.token_ids_RK1 for piece in pieces]),
                logprobs_RK1=torch.cat([piece.logprobs_RK1 for piece in pieces]),
                ranks_R=torch.cat([piece.ranks_R for piece in pieces]),
            )
        return drawn
