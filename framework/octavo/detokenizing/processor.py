"""Steps of the engine to outputs for callers; the authority on text and on when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from octavo.detokenizing.continuation import Continuation
from octavo.detokenizing.logprobs import LogprobDecoder
from octavo.engine.messages import EngineRequest, SequenceEnd, StepOutputs
from octavo.errors import ParameterError
from octavo.outputs import RequestMetrics, RequestOutput, TokenLogprobs
from octavo.params import SamplingParams
from octavo_registry.tokenizer import Tokenizer


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
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return all(c.finish_reason is not None for c in self.continuations)


class OutputProcessor:
    """Knows every live request of one client; the first of stop string and engine's end wins.

    A request's outputs come at each step that advanced it, or once at its end when its
    ``output_kind`` is "final". Not safe for use by several threads at a time.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._logprob_decoder = LogprobDecoder(tokenizer)
        self._requests: dict[str, _LiveRequest] = {}
        # By the engine's ids. One that has ended is gone, so that later tokens for it are dropped.
        self._continuations: dict[int, Continuation] = {}

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that were added and have not ended."""
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
            raise ParameterError(f"request_id={request.request_id!r} is in use; choose another")
        continuations = [
            Continuation(index, request, params, self._tokenizer)
            for index in range(len(request.sequences))
        ]
        self._requests[request.request_id] = _LiveRequest(
            request, params, prompt_text, RequestMetrics(arrival_seconds), continuations
        )
        self._continuations.update(zip(request.sequences, continuations, strict=True))

    def process(self, outputs: StepOutputs) -> ProcessedStep:
        """Take one step of the engine."""
        now = self._clock()
        aborts: list[int] = []
        due: dict[str, _LiveRequest] = {}
        ends = {end.sequence: end for end in outputs.ends}
        self._take_reports(outputs, now)
        for continuation in self._take_tokens(outputs):
            request = self._requests[continuation.request_id]
            if request.params.output_kind != "final":
                due[continuation.request_id] = request
            if continuation.sequence_id in ends:
                continue  # its last token may not be part of the text
            continuation.read(len(continuation.token_ids))
            if continuation.finish_reason is not None:
                aborts.append(continuation.sequence_id)
                self._close(continuation, due)
        for end in outputs.ends:
            ended = self._continuations.get(end.sequence)
            if ended is not None:
                self._take_end(ended, end)
                self._close(ended, due)
        return ProcessedStep(self._deliver(due.values(), now), aborts)

    def abort(self, request_id: str) -> ProcessedStep:
        """End a request; the last output holds what came so far. Nothing for an unknown one."""
        request = self._requests.get(request_id)
        return self._end_early([] if request is None else [request], "abort")

    def fail_all(self, message: str) -> ProcessedStep:
        """End every request with an error, as when the engine has died."""
        requests = list(self._requests.values())
        for request in requests:
            request.error = message
        return self._end_early(requests, "error")

    def _take_reports(self, outputs: StepOutputs, now: float) -> None:
        for report in outputs.prompts:
            continuation = self._continuations.get(report.sequence)
            if continuation is None:
                continue
            request = self._requests[continuation.request_id]
            request.metrics.first_token_seconds = now  # it comes with the first token
            request.metrics.num_cached_tokens = report.num_cached_tokens
            if report.logprobs is not None:
                decoded = [self._logprob_decoder.decode(entry) for entry in report.logprobs]
                request.prompt_logprobs = [None, *decoded]
        for sequence_id in outputs.preempted:
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                self._requests[continuation.request_id].metrics.num_preemptions += 1

    def _take_tokens(self, outputs: StepOutputs) -> Iterable[Continuation]:
        """Store the tokens; return those continuations that each step is looked at for."""
        watched: dict[int, Continuation] = {}
        for sequence_id, token in zip(outputs.sequences, outputs.tokens, strict=True):
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                continuation.token_ids.append(token)
                if continuation.watched:
                    watched[sequence_id] = continuation
        for sequence_id, logprobs in outputs.logprobs.items():
            continuation = self._continuations.get(sequence_id)
            if continuation is not None:
                continuation.raw_logprobs.append(logprobs)
        return watched.values()

    def _take_end(self, continuation: Continuation, end: SequenceEnd) -> None:
        request = self._requests[continuation.request_id]
        num_text_tokens = len(continuation.token_ids)
        if end.reason == "stop" and not request.params.include_stop_str_in_output:
            num_text_tokens -= 1  # the stop token
        continuation.finish(end.reason, end.stop_token_id, num_text_tokens=num_text_tokens)
        if end.error is not None:
            request.error = end.error

    def _close(self, continuation: Continuation, due: dict[str, _LiveRequest]) -> None:
        del self._continuations[continuation.sequence_id]
        request = self._requests[continuation.request_id]
        if request.finished:
            due[continuation.request_id] = self._requests.pop(continuation.request_id)

    def _end_early(
        self, requests: list[_LiveRequest], reason: Literal["abort", "error"]
    ) -> ProcessedStep:
        now = self._clock()
        aborts: list[int] = []
        due: dict[str, _LiveRequest] = {}
        for request in requests:
            for continuation in request.continuations:
                if continuation.finish_reason is None:
                    continuation.finish(reason, num_text_tokens=len(continuation.token_ids))
                    aborts.append(continuation.sequence_id)
                    self._close(continuation, due)
        return ProcessedStep(self._deliver(due.values(), now), aborts)

    def _deliver(self, requests: Iterable[_LiveRequest], now: float) -> list[RequestOutput]:
        outputs = []
        for request in requests:
            if request.finished:
                request.metrics.finished_seconds = now
            delta = request.params.output_kind == "delta"
            outputs.append(
                RequestOutput(
                    request_id=request.request.request_id,
                    prompt=request.prompt,
                    prompt_token_ids=request.request.prompt_token_ids,
                    outputs=[
                        continuation.output(self._logprob_decoder, delta=delta)
                        for continuation in request.continuations
                        if continuation.has_news or not delta
                    ],
                    finished=request.finished,
                    metrics=request.metrics,
                    prompt_logprobs=request.prompt_logprobs,
                    error=request.error,
                )
            )
        return outputs
