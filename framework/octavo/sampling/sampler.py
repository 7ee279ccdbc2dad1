"""Hidden states to tokens on one device: logits, what they may not be, samples, log probabilities.

Axis suffixes: R rows, T rows of logits, K tokens that a row yields, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.errors import PluginError
from octavo.layers.adapted import AdapterRows, AdapterSpans
from octavo.sampling.automata import DeviceAutomata
from octavo.sampling.forward import Forward, Sampled
from octavo.sampling.logprobs import TokenLogprobTensors, token_logprobs
from octavo.sampling.masks import TokenMask
from octavo.sampling.processors import GuardedProcessor, LogitsCheck
from octavo.sampling.sparse import SparseParameters
from octavo.steps.device_state import DeviceState
from octavo.steps.plan import StepPlan, TokenMasks
from octavo.steps.sharing import SharedTokens
from octavo.steps.staging import Staging
from octavo.steps.uploads import upload
from octavo_kernels.byte_automaton import AutomatonStates
from octavo_kernels.row_features import Work
from octavo_kernels.sample import processed, sample
from octavo_kernels.step_state import DraftRows
from octavo_registry.model import RulesOutTokens, SamplesTokens, SequenceTokens

LOGIT_ROWS = 512
"""Rows of prompt logits computed at a time: bounds their memory whatever the chunk."""


class Sampler:
    """Samples the tokens of steps in their order; what is attached to slots is kept here.

    What becomes of a row's logits is in ``octavo_kernels.sample``.
    """

    def __init__(
        self,
        *,
        model: SamplesTokens,
        state: DeviceState,
        vocab_size: int,
        processors: Sequence[GuardedProcessor],
        adapters: AdapterRows | None,
        staging: Staging,
        logprobs_mode: str,
    ) -> None:
        """``staging`` is for the host's masks alone, ``logprobs_mode`` the option of that name."""
        self._model = model
        self._rules = model if isinstance(model, RulesOutTokens) else None
        self._state = state
        # Steps are recorded on CUDA alone; a CPU's memory is for those who use the tables.
        self._sparse = SparseParameters(state.sampling, vocab_size, at_start=state.arena.is_cuda)
        self._vocab_size = vocab_size
        self._processors = list(processors)
        self._adapters = adapters
        self._staging = staging
        self._logprobs_processed = logprobs_mode.startswith("processed_")
        self._logprobs_normalized = logprobs_mode.endswith("_logprobs")
        self._is_astray = False
        """A step has raised before all was attached: nothing counts until all are detached."""
        self._automata = DeviceAutomata(state, vocab_size)

    def takes_drafts(self, plan: StepPlan) -> bool:
        """Whether rows may have drafts: not where somebody is asked who sees no draft."""
        return not (plan.awaits_masks or plan.num_held or self._processors or self._rules)

    def begin(self, plan: StepPlan) -> None:
        """Bring what is attached to slots to where the step begins."""
        if len(plan.detach) >= self._state.layout.num_slots:
            self._is_astray = False
        if self._is_astray:  # no processor is to be asked of slots that it does not know
            raise RuntimeError("the step builds on one that raised")
        self._is_astray = bool(self._processors)
        for slot in plan.detach:
            for processor in self._processors:
                processor.detach(slot)
        for new in plan.attach:
            self._sparse.attach(new.slot, new.sampling)
            for processor in self._processors:
                processor.attach(new)
        self._is_astray = False
        for load in plan.automata:
            self._automata.load(load)

    def sample_in_place(
        self, hidden_RD: Tensor, slots_R: Tensor, work: Work, *, masked: bool
    ) -> Tensor:
        """What rows of one token yield [R, 1], by the device state alone: it may be recorded."""
        spans = None if self._adapters is None else self._adapters.spans
        logits_RV = self._ruled(self._logits(hidden_RD, spans, 0), slots_R)
        if masked:
            tokens_R = self._choose(logits_RV, slots_R, work, None, self._automata.masks(slots_R))
            self._automata.walk(slots_R, tokens_R)
        else:
            tokens_R = self._choose(logits_RV, slots_R, work, None, None)
        starts_R1 = self._state.one_each_R1[: len(slots_R) + 1]
        self._state.accept(slots_R, starts_R1, slots_R, tokens_R)
        return tokens_R.unsqueeze(1)

    def sample(self, forward: Forward, masks: TokenMasks | None) -> Sampled:
        """All that a step's rows want; prompt rows stand behind the rows that sample."""
        plan, shared, slots_T = forward.plan, forward.shared, forward.logit_slots_T
        tokens_T, sampled = slots_T[:0], Sampled()
        mask = behind = None
        if len(slots_T):
            logits_TV = self._logits(forward.hidden_RD[: len(slots_T)], forward.spans, 0)
            logits_TV = self._ruled(logits_TV, slots_T)
            if self._processors:
                logits_TV, unusable_R = self._processed(logits_TV, slots_T)
                sampled.unusable_RK = unusable_R.unsqueeze(1)
            if plan.masked and shared is not None:
                behind = self._automata.behind(shared)
            mask = self._mask(forward, masks, behind)
            ahead_T = None if shared is None else shared.ahead_T
            tokens_T = self._choose(logits_TV, slots_T, plan.work, ahead_T, mask)
            sampled.tokens_RK = tokens_T.unsqueeze(1)
            if plan.num_logprobs >= 0:
                sampled.logprobs = self._logprobs(forward, logits_TV, tokens_T, mask)
        if shared is None:
            self._state.accept(
                forward.slots_R, forward.query_starts_R1, forward.sample_slots_R, tokens_T
            )
            if plan.masked:
                self._automata.walk(slots_T, tokens_T)
        else:
            self._accept_drafts(shared, tokens_T, behind, plan, sampled)
        if plan.num_prompt_logprobs >= 0:
            sampled.prompt_logprobs = self._prompt_logprobs(forward, len(slots_T))
        return sampled

    def _accept_drafts(
        self,
        shared: SharedTokens,
        tokens_T: Tensor,
        behind: AutomatonStates | None,
        plan: StepPlan,
        sampled: Sampled,
    ) -> None:
        """Let rows have what counts of their samples, and make the results of these."""
        rows, num_rows = DraftRows.empty(shared.starts_R1, plan.most_yield), len(plan.features)
        self._state.accept(shared.slots_R, shared.starts_R1, shared.slots_R, tokens_T, rows)
        if behind is not None:
            last_R = shared.last_of(rows.counts_N)
            last_tokens_R = tokens_T.index_select(0, last_R)
            self._automata.walk(shared.slots_R, last_tokens_R, (behind, last_R))
        sampled.tokens_RK, sampled.counts_R = rows.tokens_NK[:num_rows], rows.counts_N[:num_rows]
        if sampled.logprobs is not None:
            rows_R = torch.arange(num_rows, device=tokens_T.device)
            lines = shared.logits_of(rows_R, plan.most_yield)
            sampled.logprobs = sampled.logprobs.at(lines)

    def _choose(
        self,
        logits_TV: Tensor,
        slots_T: Tensor,
        work: Work,
        ahead_T: Tensor | None,
        mask: TokenMask | None,
    ) -> Tensor:
        """A token for each row of logits, int32."""
        mask_rows_T, mask_MW = mask or (None, None)
        return sample(
            logits_TV,
            slots_T,
            self._sparse.state,
            work=work,
            ahead_R=ahead_T,
            mask_rows_R=mask_rows_T,
            mask_MW=mask_MW,
        )

    def _logprobs(
        self, forward: Forward, logits_TV: Tensor, tokens_T: Tensor, mask: TokenMask | None
    ) -> TokenLogprobTensors:
        """Log probabilities of the logits as they came, but where a mask counts in them, or of
        what tokens are sampled by.
        """
        plan, shared = forward.plan, forward.shared
        if mask is not None and plan.of_allowed.any():
            rows_K = upload(np.flatnonzero(plan.of_allowed), logits_TV.device)
            if shared is not None:
                rows_K = shared.logits_of(rows_K, plan.most_yield)
            logits_TV = mask.of_allowed(logits_TV, rows_K)

        def process(rows: slice) -> Tensor:
            return processed(
                logits_TV[rows],
                forward.logit_slots_T[rows],
                self._sparse.state,
                None if shared is None else shared.ahead_T[rows],
                None if mask is None else mask.lines_R[rows],
                None if mask is None else mask.bits_MW,
            )

        return token_logprobs(
            logits_TV,
            tokens_T,
            plan.num_logprobs,
            process=process if self._logprobs_processed else None,
            normalized=self._logprobs_normalized,
        )

    def _prompt_logprobs(self, forward: Forward, first: int) -> TokenLogprobTensors:
        """Log probabilities of prompts, for the rows from the first on, some at a time."""
        pieces = [
            token_logprobs(
                self._logits(rows_RD, forward.spans, first + LOGIT_ROWS * number),
                wanted_R,
                forward.plan.num_prompt_logprobs,
            )
            for number, (rows_RD, wanted_R) in enumerate(
                zip(
                    forward.hidden_RD[first:].split(LOGIT_ROWS),
                    forward.prompt_targets.split(LOGIT_ROWS),
                    strict=True,
                )
            )
        ]
        return TokenLogprobTensors(
            token_ids_RK1=torch.cat([piece.token_ids_RK1 for piece in pieces]),
            logprobs_RK1=torch.cat([piece.logprobs_RK1 for piece in pieces]),
            ranks_R=torch.cat([piece.ranks_R for piece in pieces]),
        )

    def _logits(self, hidden_RD: Tensor, spans: AdapterSpans | None, first: int) -> Tensor:
        """Logits of rows which ``spans`` has from the first on."""
        if self._adapters is not None:
            some = None if spans is None else spans.some(first, len(hidden_RD))
            self._adapters.begin_logits(some)
        logits_RV = self._model.logits(hidden_RD)
        if logits_RV.shape != (len(hidden_RD), self._vocab_size):
            raise PluginError(
                f"{type(self._model).__name__}.logits gave {list(logits_RV.shape)}, not "
                f"{len(hidden_RD)} rows of {self._vocab_size}"
            )
        return logits_RV

    def _ruled(self, logits_RV: Tensor, slots_R: Tensor) -> Tensor:
        """Logits of what these slots may have next, by the model's own rules."""
        if self._rules is None:
            return logits_RV
        return self._rules.rule_out(logits_RV, slots_R, self._so_far())

    def _processed(self, logits_RV: Tensor, slots_R: Tensor) -> tuple[Tensor, Tensor]:
        """What the plugins' processors make of them, and which rows are of no use then."""
        check = LogitsCheck(len(logits_RV), logits_RV.device)
        logits_RV, so_far = check.look(logits_RV), self._so_far()
        for processor in self._processors:
            logits_RV = check.look(processor.apply(logits_RV, slots_R, so_far))
        return logits_RV, check.unusable_R

    def _so_far(self) -> SequenceTokens:
        state = self._state
        return SequenceTokens(tokens_SL=state["tokens"], num_tokens_S=state["num_tokens"])

    def _mask(
        self, forward: Forward, masks: TokenMasks | None, behind: AutomatonStates | None
    ) -> TokenMask | None:
        """What may come in rows of logits, by the host's masks and the device's automata."""
        slots_T = forward.logit_slots_T
        some = masks if masks is not None and len(masks.rows_M) else None
        if forward.plan.masked:
            automata = self._automata
            mask = automata.masks(slots_T) if behind is None else automata.masks_behind(behind)
            if some is not None:
                rows_M = upload(some.rows_M, slots_T.device)
                mask.lines_R[rows_M.long()] = rows_M
                mask.bits_MW[rows_M.long()] = self._send(some)
            return mask
        if some is None:
            return None
        lines = np.full(len(slots_T), -1, np.int32)
        lines[some.rows_M] = np.arange(len(some.rows_M), dtype=np.int32)
        return TokenMask(upload(lines, slots_T.device), self._send(some))

    def _send(self, masks: TokenMasks) -> Tensor:
        return self._staging.send(masks.bits_MW.reshape(-1)).view(masks.bits_MW.shape)
