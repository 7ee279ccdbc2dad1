"""Hidden states to tokens on one device: logits, what they may not be, samples, log probabilities.

Axis suffixes: R rows, D hidden, V vocabulary.
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
from octavo.steps.staging import Staging
from octavo.steps.uploads import upload
from octavo_kernels.row_features import Work, work_of
from octavo_kernels.sample import processed, sample
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
        """A token for each row, by the device state alone, so that it may be recorded."""
        spans = None if self._adapters is None else self._adapters.spans
        logits_RV = self._ruled(self._logits(hidden_RD, spans, 0), slots_R)
        if not masked:
            return self._choose(logits_RV, slots_R, work)
        tokens_R = self._choose(logits_RV, slots_R, work, *self._automata.masks(slots_R))
        self._automata.walk(slots_R, tokens_R)
        return tokens_R

    def sample(self, forward: Forward, masks: TokenMasks | None) -> Sampled:
        """All that a step's rows want; prompt rows stand behind the rows that sample."""
        plan, hidden_RD, slots_R = forward.plan, forward.hidden_RD, forward.sample_slots_R
        num_samples = len(plan.features)
        sampled = Sampled()
        if num_samples:
            logits_RV = self._logits(hidden_RD[:num_samples], forward.spans, 0)
            logits_RV = self._ruled(logits_RV, slots_R)
            if self._processors:
                logits_RV, sampled.unusable_R = self._processed(logits_RV, slots_R)
            mask = self._mask(forward, masks)
            lines = (None, None) if mask is None else (mask.lines_R, mask.bits_MW)
            tokens_R = self._choose(logits_RV, slots_R, work_of(plan.features), *lines)
            sampled.tokens_R = tokens_R
            if plan.num_logprobs >= 0:
                sampled.logprobs = self._logprobs(forward, logits_RV, tokens_R, mask)
            if plan.masked:
                self._automata.walk(slots_R, tokens_R)
        if plan.num_prompt_logprobs >= 0:
            sampled.prompt_logprobs = self._prompt_logprobs(forward, num_samples)
        return sampled

    def _choose(
        self,
        logits_RV: Tensor,
        slots_R: Tensor,
        work: Work,
        mask_rows_R: Tensor | None = None,
        mask_MW: Tensor | None = None,
    ) -> Tensor:
        """A token for each row of logits, int32."""
        state = self._sparse.state
        return sample(
            logits_RV, slots_R, state, work=work, mask_rows_R=mask_rows_R, mask_MW=mask_MW
        )

    def _logprobs(
        self, forward: Forward, logits_RV: Tensor, tokens_R: Tensor, mask: TokenMask | None
    ) -> TokenLogprobTensors:
        """Log probabilities of the logits as they came, but where a mask counts in them, or of
        what tokens are sampled by.
        """
        if mask is not None:
            logits_RV = mask.in_logprobs(logits_RV)

        def process(rows: slice) -> Tensor:
            return processed(
                logits_RV[rows],
                forward.sample_slots_R[rows],
                self._sparse.state,
                None,
                None if mask is None else mask.lines_R[rows],
                None if mask is None else mask.bits_MW,
            )

        return token_logprobs(
            logits_RV,
            tokens_R,
            forward.plan.num_logprobs,
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

    def _mask(self, forward: Forward, masks: TokenMasks | None) -> TokenMask | None:
        """What the rows that sample may have, by the host's masks and the device's automata."""
        plan, slots_R = forward.plan, forward.sample_slots_R
        some = masks if masks is not None and len(masks.rows_M) else None
        if plan.masked:
            lines_R, bits_MW = self._automata.masks(slots_R)
            if some is not None:
                rows_M = upload(some.rows_M, slots_R.device)
                lines_R[rows_M.long()] = rows_M
                bits_MW[rows_M.long()] = self._send(some)
        elif some is not None:
            lines = np.full(len(plan.features), -1, np.int32)
            lines[some.rows_M] = np.arange(len(some.rows_M), dtype=np.int32)
            lines_R, bits_MW = upload(lines, slots_R.device), self._send(some)
        else:
            return None
        return TokenMask(lines_R=lines_R, bits_MW=bits_MW, in_logprobs_R=plan.of_allowed)

    def _send(self, masks: TokenMasks) -> Tensor:
        return self._staging.send(masks.bits_MW.reshape(-1)).view(masks.bits_MW.shape)
