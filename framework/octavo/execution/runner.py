"""One step on one device: apply the diff, run the model over the packed rows, sample the tokens.

Axis suffixes: T tokens of the step, R rows, D hidden, V vocabulary. The host never waits here on
CUDA: what it needs of a step it gets from ``Sampled`` one step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from octavo.cache.groups import CacheLayout
from octavo.execution.cache_memory import CacheMemory
from octavo.execution.decode_graphs import DecodeGraphs, StepFunction
from octavo.execution.forward_pass import ForwardPass
from octavo.execution.layer_count import LayerCount
from octavo.execution.media_encoder import MediaEncoder
from octavo.execution.recordings import SIZES
from octavo.layers.adapted import NO_SITES, AdapterRows, AdapterSpans, SiteKinds, family_of
from octavo.sampling.forward import Forward, Sampled
from octavo.sampling.held_rows import HeldRows, insert, insert_spans
from octavo.sampling.processors import GuardedProcessor
from octavo.sampling.sampler import Sampler
from octavo.steps.device_state import DeviceState
from octavo.steps.layout import StateLayout
from octavo.steps.plan import Sections, StepPlan, TokenMasks
from octavo.steps.recording import Recording, StepKind
from octavo.steps.sharing import share_out
from octavo.steps.staging import Staging
from octavo.steps.uploads import upload
from octavo_kernels.row_features import Work
from octavo_registry.attention import AttentionBackend
from octavo_registry.model import Model, SamplesTokens
from octavo_registry.step import StepBounds


class ModelRunner:
    """Runs planned steps in order on tensors that persist between them."""

    def __init__(
        self,
        *,
        model: Model,
        layout: CacheLayout,
        state_layout: StateLayout,
        memory: CacheMemory,
        backends: Sequence[AttentionBackend | None],
        vocab_size: int,
        processors: Sequence[GuardedProcessor],
        device: torch.device,
        async_depth: int,
        use_graphs: bool,
        batch_invariant: bool,
        logprobs_mode: str,
        position_axes: int,
        encoder: MediaEncoder | None,
        adapters: AdapterRows | None = None,
    ) -> None:
        self.model = model
        self.state = DeviceState(state_layout, device)
        self.memory = memory
        self._layout = layout
        self._forward = ForwardPass(
            model=model,
            state=self.state,
            layout=layout,
            memory=memory,
            backends=backends,
            adapters=adapters,
            batch_invariant=batch_invariant,
            position_axes=position_axes,
        )
        assert isinstance(model, SamplesTokens)  # the loader has seen to it
        self._sampler = Sampler(
            model=model,
            state=self.state,
            vocab_size=vocab_size,
            processors=processors,
            adapters=adapters,
            staging=Staging(device, async_depth),
            logprobs_mode=logprobs_mode,
        )
        self._staging = Staging(device, async_depth)
        self._vocab_size = vocab_size
        self._encoder = encoder
        self._adapters = adapters
        num_slots = state_layout.num_slots
        self._held = HeldRows(num_slots)
        self._hidden_RD: Tensor | None = None
        """Hidden states of the last recorded forward."""
        self._unsampled: Forward | None = None
        """The step that awaits masks."""
        self._graphs: DecodeGraphs | None = None
        if use_graphs:
            most_rows = min(num_slots, SIZES[-1])
            self._graphs = DecodeGraphs(most_rows, state_layout.padding_slot, device)
        self.layers = LayerCount(cast(nn.Module, model), device)

    @property
    def can_record(self) -> bool:
        """Whether ``prepare`` may do something."""
        return self._graphs is not None

    @torch.inference_mode()
    def prepare(self, recording: Recording) -> bool:
        """Record a step that plans may name; False: they must not.

        All ranks do so at the same place among the steps: it runs on padding once, for it may have
        to load kernels.
        """
        if self._graphs is None:
            return False
        return self._graphs.prepare(recording.num_rows, *self._step_of(recording.kind))

    def close(self) -> None:
        """Free what was recorded: it refers to the runner, and garbage would be collected late."""
        if self._graphs is not None:
            self._graphs.forget()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Sampled | None:
        """Launch a step; its results are ready when the device has come so far.

        None for one that awaits masks: ``sample`` completes it.
        """
        if plan.recording is not None and self._graphs is not None:
            return self._run_recorded(plan, plan.recording, self._graphs)
        if plan.most_yield > 1 and self._takes_drafts(plan):
            return self._run_with_drafts(plan)
        parts = self._send(plan)
        self._begin(plan)
        slots_R, query_starts_R1 = parts.slots, parts.query_starts
        bounds = StepBounds(query_lens_R=plan.query_lens, context_lens_R=plan.context_lens)
        media = None
        if self._encoder is not None:
            self._encoder.encode(plan.encode)
            self._encoder.fill(
                parts.cross_rows, parts.cross_slots, self._layout.cross_groups, self._forward.layers
            )
            media = self._encoder.rows(parts.media_tokens, parts.media_rows)
        hidden_RD = spans = None
        if plan.num_rows:
            hidden_TD = self._forward.run(
                slots_R,
                query_starts_R1,
                parts.logit_tokens,
                bounds,
                positions=parts.positions,
                media=media,
                cuts=plan.cuts,
                sites=self._sites(plan.has_adapters),
            )
            hidden_RD = hidden_TD.index_select(0, parts.logit_tokens)
            if self._adapters is not None and self._adapters.spans is not None:
                spans = self._adapters.spans.at(parts.logit_tokens)
        if hidden_RD is None or plan.num_held:
            hidden_RD, spans = self._with_held(plan, parts, hidden_RD, spans)
        if len(leaders := parts.family_rows):
            self._held.keep_for_family(
                parts.sample_slots.index_select(0, leaders), hidden_RD.index_select(0, leaders)
            )
        return self._sample_or_await(
            Forward(
                plan=plan,
                hidden_RD=hidden_RD,
                slots_R=slots_R,
                query_starts_R1=query_starts_R1,
                sample_slots_R=parts.sample_slots,
                prompt_targets=parts.prompt_targets,
                spans=spans,
            )
        )

    def _takes_drafts(self, plan: StepPlan) -> bool:
        """Backends must be told how many tokens a row has, or take what the device says."""
        on_cpu = self.state.arena.device.type == "cpu"
        are_told = on_cpu or plan.most_yield <= self._forward.most_hidden_queries
        return are_told and self._sampler.takes_drafts(plan)

    def _run_with_drafts(self, plan: StepPlan) -> Sampled:
        """A step of a known token a row, and of the drafts that rows have on the device."""
        parts = self._send(plan)
        self._begin(plan)
        shared = share_out(
            self.state,
            parts.slots,
            num_tokens=plan.num_tokens,
            most_yield=plan.most_yield,
            vocab_size=self._vocab_size,
        )
        hidden_TD = self._forward.run(
            shared.slots_R,
            shared.starts_R1,
            torch.arange(plan.num_tokens, device=shared.slots_R.device),
            shared.bounds(self.state, plan),
            num_tokens=plan.num_tokens,
            sites=self._sites(plan.has_adapters),
        )
        return self._sampler.sample(
            Forward(
                plan=plan,
                hidden_RD=hidden_TD,
                slots_R=shared.slots_R,
                query_starts_R1=shared.starts_R1,
                sample_slots_R=shared.slots_R,
                prompt_targets=shared.slots_R[:0],
                spans=None if self._adapters is None else self._adapters.spans,
                shared=shared,
            ),
            None,
        )

    @torch.inference_mode()
    def sample(self, masks: TokenMasks) -> Sampled:
        """Complete the step that awaits masks."""
        forward, self._unsampled = self._unsampled, None
        if forward is None:
            raise RuntimeError("no step awaits masks")
        if len(masks.put_off_P):
            rows_P = upload(masks.put_off_P, forward.hidden_RD.device)
            self._held.put_off(
                forward.sample_slots_R.index_select(0, rows_P),
                forward.hidden_RD.index_select(0, rows_P),
            )
        return self._sampler.sample(forward, masks)

    def _run_recorded(
        self, plan: StepPlan, recording: Recording, graphs: DecodeGraphs
    ) -> Sampled | None:
        """A step of one token a row: what has changed goes to the device, the rest is there."""
        num_words, num_rows = plan.sizes.diff_indices, plan.num_rows
        parts = self._send(plan) if plan.num_held else None
        if parts is None and num_words:
            # A kernel reads few words from the host sooner than a copy is launched: 20 us.
            diff = self._staging.pin(plan.buffer[: 2 * num_words])
            self.state.apply(diff[:num_words], diff[num_words:])
        self._begin(plan)
        slots_R = graphs.place(plan.slots, recording.num_rows, plan.repeats or plan.step_id)
        result_R = graphs.run(slots_R, *self._step_of(recording.kind))[:num_rows]
        if recording.kind.samples:
            return Sampled(result_R)
        hidden_RD, sites = result_R, self._sites(plan.has_adapters)
        slots_R = slots_R[:num_rows]
        spans = self._forward.spans_in_state(sites).at(slots_R) if sites else None
        if parts is not None:
            hidden_RD, spans = self._with_held(plan, parts, hidden_RD, spans)
        return self._sample_or_await(
            Forward(
                plan=plan,
                hidden_RD=hidden_RD,
                slots_R=slots_R,
                query_starts_R1=self.state.one_each_R1[: num_rows + 1],
                sample_slots_R=slots_R if parts is None else parts.sample_slots,
                prompt_targets=slots_R[:0],
                spans=spans,
            )
        )

    def _send(self, plan: StepPlan) -> Sections[Tensor]:
        """Bring a plan's sections to the device, and its diff into the state."""
        parts: Sections[Tensor] = Sections._make(self._staging.send(plan.buffer).split(plan.sizes))
        self.state.apply(parts.diff_indices, parts.diff_values)
        return parts

    def _with_held(
        self,
        plan: StepPlan,
        parts: Sections[Tensor],
        hidden_RD: Tensor | None,
        spans: AdapterSpans | None,
    ) -> tuple[Tensor, AdapterSpans | None]:
        """A forward pass's rows with those that are held, which are the last that are sampled."""
        held_RD = self._held.at(parts.held)
        first = len(plan.features) - plan.num_held
        if sites := self._sites(plan.has_adapters):
            of_held = self._forward.spans_in_state(sites).at(parts.sample_slots[first:])
            spans = of_held if spans is None else insert_spans(spans, first, of_held)
        return held_RD if hidden_RD is None else insert(hidden_RD, first, held_RD), spans

    def _sample_or_await(self, forward: Forward) -> Sampled | None:
        if forward.plan.awaits_masks:
            self._unsampled = forward
            return None
        return self._sampler.sample(forward, None)

    def _decode_in_place(self, slots_R: Tensor, *, sites: SiteKinds) -> Tensor:
        """Hidden states in memory of all recordings: their own would be 140 MiB of a Llama 8B."""
        hidden_RD = self._forward.decode(slots_R, sites)
        if self._hidden_RD is None:  # before anything of the kind is recorded
            most_rows = min(self.state.layout.num_slots, SIZES[-1])
            self._hidden_RD = hidden_RD.new_empty(most_rows, hidden_RD.shape[1])
        return self._hidden_RD[: len(slots_R)].copy_(hidden_RD)

    def _step_of(self, kind: StepKind) -> tuple[str, StepFunction]:
        """What a recorded step of this kind does now, and its name: which sites adapters add at
        changes with the adapters."""
        sites = self._sites(kind.has_adapters)
        if not kind.samples:
            return f"forward{family_of(sites)}", partial(self._decode_in_place, sites=sites)
        work, masked = kind.work, kind.masked
        step = partial(self._decode_and_sample, work=work, sites=sites, masked=masked)
        return f"step {int(work)}{family_of(sites)}{' masked' if masked else ''}", step

    def _sites(self, has_adapters: bool) -> SiteKinds:
        """Where the adapters of a step may add."""
        return self._adapters.sites if has_adapters and self._adapters else NO_SITES

    def _decode_and_sample(
        self, slots_R: Tensor, *, work: Work, sites: SiteKinds, masked: bool
    ) -> Tensor:
        hidden_RD = self._forward.decode(slots_R, sites)
        return self._sampler.sample_in_place(hidden_RD, slots_R, work, masked=masked)

    def _begin(self, plan: StepPlan) -> None:
        """Bring the cache and what is attached to slots to where the step begins."""
        self.memory.move(plan.moves)
        if self._adapters is not None:
            for load in plan.adapters:
                self._adapters.load(load)
        self._sampler.begin(plan)
