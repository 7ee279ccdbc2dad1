"""Steps of the engine to outputs for callers; the authority on text and on when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from octavo.detokenizing.continuation import Continuation
from octavo.detokenizing.logprobs import LogprobDecoder
from octavo.errors import ParameterError
from octavo.messages import EngineRequest, SequenceEnd, SequenceLogprobs, StepOutputs
from octavo.model_folder.tokenizer_failures import TokenizerFailure, unnamed_failure
from octavo.outputs import GuideReceipt, RequestMetrics, RequestOutput, TokenLogprobs
from octavo.params import SamplingParams
from octavo_registry import RequestOutcome
from octavo_registry.faults import FAILURES
from octavo_registry.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MOST_UNREAD_STEPS = 64
"""Tokens of so many steps may wait until somebody looks at them."""


class RequestObserver(Protocol):
    """Is told of requests as they advance, at once and in the processor's thread."""

    def step(self, sequences: list[int], counts: list[int], now: float) -> None:
        """Each of these got so many tokens, or one where ``counts`` is empty; once a step."""
        ...

    def first_token(self, seconds: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A request got its first token, so many seconds after it arrived."""
        ...

    def finished(self, outcome: RequestOutcome, max_tokens: int) -> None:
        """A request has ended."""
        ...


@dataclass(slots=True)
class ProcessedStep:
    """What came of a step: outputs for callers, and sequences that the engine is to abort."""

    outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _LiveRequest:
    request: EngineRequest
    params: SamplingParams
    prompt: str | None
    metrics: RequestMetrics
    continuations: list[Continuation]
    raw_prompt_logprobs: list[SequenceLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    guided: GuideReceipt | None = None
    error: str | None = None
    error_type: str | None = None

    @property
    def finished(self) -> bool:
        # Not `all` of a generator: at each token that takes twice as long.
        return None not in [c.finish_reason for c in self.continuations]


class OutputProcessor:
    """Knows every live request of one client; the first of stop string and engine's end wins.

    A request's outputs come at each step that advanced it, or once at its end when its
    ``output_kind`` is "final". Not safe for use by several threads at a time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_finished: Callable[[RequestOutcome], None] | None = None,
        tokenizer_failed: TokenizerFailure = unnamed_failure,
    ) -> None:
        self.observer: RequestObserver | None = None
        self._tokenizer = tokenizer
        self._on_finished = on_finished
        self._tokenizer_failed = tokenizer_failed
        self._clock = clock
        self._logprob_decoder = LogprobDecoder(tokenizer)
        self._requests: dict[str, _LiveRequest] = {}
        # By the engine's ids. One that has ended is gone, so that later tokens for it are dropped.
        self._continuations: dict[int, Continuation] = {}
        self._unread_sequences: list[int] = []
        """Sequences of the last step that nobody looks at before their end."""
        self._unread_tokens: list[list[int]] = []
        """What steps of just these sequences have given since they were last looked at."""

    @property
    def num_open(self) -> int:
        """Requests that are not finished."""
        return len(self._requests)

    def add(
        self,
        request: EngineRequest,
        params: SamplingParams,
        prompt_text: str | None,
        arrival_seconds: float,
    ) -> None:
        """Expect a request's outputs; to be called before the engine gets the request."""
        if request.request_id in self._requests:
            raise ParameterError(
                f"request_id={request.request_id!r} is in use; choose another", param="request_id"
            )
        continuations = [
            Continuation(index, request, params, self._tokenizer, self._logprob_decoder)
            for index in range(len(request.sequences))
        ]
        live = _LiveRequest(
            request, params, prompt_text, RequestMetrics(arrival_seconds), continuations
        )
        if request.guide is not None and params.guided is not None:
            live.guided = GuideReceipt(params.guided.constraint, request.guide.backend)
        self._requests[request.request_id] = live
        self._continuations.update(zip(request.sequences, continuations, strict=True))

    def process(self, outputs: StepOutputs) -> ProcessedStep:
        """Take one step of the engine."""
        ends = {end.sequence: end for end in outputs.ends}
        due: dict[str, _LiveRequest] = {}
        step = ProcessedStep()
        now = self._clock()
        if self.observer is not None and outputs.sequences:
            self.observer.step(outputs.sequences, outputs.counts, now)
        self._take_reports(outputs, now)
        for continuation in self._take_tokens(outputs):
            if continuation.sequence_id not in self._continuations:
                continue  # the failure of another of its request, in this step, ended it too
            request = self._requests[continuation.request_id]
            if request.params.output_kind != "final":
                due[continuation.request_id] = request
            if continuation.sequence_id not in ends:
                self._advance(request, continuation, None)
                if continuation.finish_reason is not None:
                    self._close(request, ends, due, step.aborts)
        if outputs.ends:
            self._hand_out()
        for end in outputs.ends:
            ended = self._continuations.get(end.sequence)
            if ended is not None:
                request = self._requests[ended.request_id]
                if end.error is not None:
                    request.error, request.error_type = end.error, end.error_type
                self._advance(request, ended, end)
                self._close(request, ends, due, step.aborts)
        step.outputs = self._deliver(due.values(), now)
        return step

    def abort(self, request_id: str) -> ProcessedStep:
        """End a request; the last output holds what came so far. Nothing for an unknown one."""
        request = self._requests.get(request_id)
        if request is None:
            return ProcessedStep()
        due: dict[str, _LiveRequest] = {}
        step = ProcessedStep()
        self._hand_out()
        for continuation in request.continuations:
            if continuation.finish_reason is None:
                end = SequenceEnd(continuation.sequence_id, "abort")
                self._advance(request, continuation, end)
        self._close(request, (), due, step.aborts)
        step.outputs = self._deliver(due.values(), self._clock())
        return step

    def _take_reports(self, outputs: StepOutputs, now: float) -> None:
        for sequence_id in outputs.preempted:
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                self._requests[continuation.request_id].metrics.num_preemptions += 1
        for report in outputs.prompts:
            continuation = self._continuations.get(report.sequence)
            if continuation is None:
                continue
            request = self._requests[continuation.request_id]
            # It comes with the first token. Of later continuations it tells what the first filled.
            metrics = request.metrics
            if metrics.first_token_seconds is None:
                metrics.first_token_seconds = now
                metrics.num_cached_tokens = report.num_cached_tokens
                metrics.seconds_in_queue = report.seconds_in_queue
                metrics.seconds_in_prefill = report.seconds_in_prefill
                request.raw_prompt_logprobs = report.logprobs
                if request.guided is not None:
                    request.guided = replace(
                        request.guided,
                        backend=report.guided_by or request.guided.backend,
                        compile_seconds=report.seconds_for_guide,
                    )
                if self.observer is not None:
                    num_prompt_tokens = len(request.request.prompt_token_ids)
                    waited = now - metrics.arrival_seconds
                    self.observer.first_token(waited, num_prompt_tokens, report.num_cached_tokens)

    def _take_tokens(self, outputs: StepOutputs) -> Iterable[Continuation]:
        """Store the tokens; return those continuations that each step is looked at for."""
        is_repeated = outputs.sequences == self._unread_sequences and not outputs.logprobs
        if is_repeated and not outputs.counts and len(self._unread_tokens) < MOST_UNREAD_STEPS:
            self._unread_tokens.append(outputs.tokens)
            return ()
        self._hand_out()
        self._unread_sequences = []
        watched: dict[int, Continuation] = {}
        for sequence_id, tokens in outputs.by_sequence():
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                continuation.token_ids += tokens
                if continuation.watched:
                    watched[sequence_id] = continuation
        for sequence_id, logprobs in outputs.logprobs.items():
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                continuation.raw_logprobs += logprobs
        if not watched and len(set(outputs.sequences)) == len(outputs.sequences):
            self._unread_sequences = outputs.sequences
        return watched.values()

    def _hand_out(self) -> None:
        """Give the unread tokens to their continuations."""
        for sequence_id, tokens in zip(
            self._unread_sequences, zip(*self._unread_tokens, strict=True), strict=False
        ):
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                continuation.token_ids.extend(tokens)
        self._unread_tokens = []

    def _advance(
        self, request: _LiveRequest, continuation: Continuation, end: SequenceEnd | None
    ) -> None:
        try:
            if request.raw_prompt_logprobs is not None:
                decoded = map(self._logprob_decoder.decode, request.raw_prompt_logprobs)
                request.prompt_logprobs = [None, *decoded]
                request.raw_prompt_logprobs = None
            if end is None:
                continuation.read()
            else:
                continuation.finish(end)
        except FAILURES as error:  # the tokenizer is a plugin: it may fail this request only
            log.exception("request %s: its tokens cannot be decoded", request.request.request_id)
            failure = self._tokenizer_failed("decode", error)
            request.error, request.error_type = str(failure), type(failure).__name__
            for each in request.continuations:
                each.finish_reason = each.finish_reason or "error"

    def _close(
        self,
        request: _LiveRequest,
        ended_by_engine: Container[int],
        due: dict[str, _LiveRequest],
        aborts: list[int],
    ) -> None:
        """Forget what has ended of a request, and what the engine runs on of it goes to aborts."""
        for continuation in request.continuations:
            sequence_id = continuation.sequence_id
            if continuation.finish_reason is None or sequence_id not in self._continuations:
                continue
            del self._continuations[sequence_id]
            if sequence_id not in ended_by_engine:
                aborts.append(sequence_id)
        if request.finished:
            due[request.request.request_id] = self._requests.pop(request.request.request_id)

    def _deliver(self, requests: Iterable[_LiveRequest], now: float) -> list[RequestOutput]:
        outputs = []
        for request in requests:
            if request.finished:
                request.metrics.finished_seconds = now
                self._tell_end(_outcome(request, now), request.request.sampling.max_tokens)
            delta = request.params.output_kind == "delta"
            outputs.append(
                RequestOutput(
                    request_id=request.request.request_id,
                    prompt=request.prompt,
                    prompt_token_ids=request.request.prompt_token_ids,
                    outputs=[
                        continuation.output(delta=delta)
                        for continuation in request.continuations
                        if continuation.has_news or not delta
                    ],
                    finished=request.finished,
                    metrics=request.metrics,
                    prompt_logprobs=request.prompt_logprobs,
                    error=request.error,
                    error_type=request.error_type,
                    guided=request.guided,
                )
            )
        return outputs

    def _tell_end(self, outcome: RequestOutcome, max_tokens: int) -> None:
        if self.observer is not None:
            self.observer.finished(outcome, max_tokens)
        if self._on_finished is not None:
            self._on_finished(outcome)


def _outcome(request: _LiveRequest, now: float) -> RequestOutcome:
    metrics, arrival = request.metrics, request.metrics.arrival_seconds
    first = metrics.first_token_seconds
    return RequestOutcome(
        request_id=request.request.request_id,
        finish_reasons=tuple(str(c.finish_reason) for c in request.continuations),
        num_prompt_tokens=len(request.request.prompt_token_ids),
        num_cached_tokens=metrics.num_cached_tokens,
        num_output_tokens=sum(len(c.token_ids) for c in request.continuations),
        seconds_to_first_token=None if first is None else first - arrival,
        seconds=now - arrival,
        seconds_in_queue=metrics.seconds_in_queue,
        seconds_in_prefill=metrics.seconds_in_prefill,
        num_preemptions=metrics.num_preemptions,
        error=request.error,
        extra_args=request.params.extra_args,
    )
