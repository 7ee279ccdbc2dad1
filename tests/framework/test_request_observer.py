"""What an output processor tells an observer of requests as they advance."""

from __future__ import annotations

import pytest

from octavo.detokenizing import OutputProcessor
from octavo.messages import EngineRequest, PromptReport, SequenceEnd, StepOutputs, TokenSampling
from octavo.params import SamplingParams
from octavo_registry import RequestOutcome

SEQUENCES = (10, 11)


class Told:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], list[int], float]] = []
        self.first: list[tuple[float, int, int]] = []
        self.ended: list[tuple[RequestOutcome, int]] = []

    def step(self, sequences: list[int], counts: list[int], now: float) -> None:
        self.steps.append((sequences, counts, now))

    def first_token(self, seconds: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        self.first.append((seconds, num_prompt_tokens, num_cached_tokens))

    def finished(self, outcome: RequestOutcome, max_tokens: int) -> None:
        self.ended.append((outcome, max_tokens))


def processor_of(kind: str) -> tuple[OutputProcessor, Told]:
    """One with a request of two continuations, which arrived at 99, and a clock that ticks."""
    ticks = iter(range(100, 200))
    processor = OutputProcessor(None, clock=lambda: float(next(ticks)))
    processor.observer = told = Told()
    request = EngineRequest(
        request_id="r",
        sequences=SEQUENCES,
        prompt_token_ids=[5, 6],
        sampling=TokenSampling(seed=0, max_tokens=99),
    )
    params = SamplingParams(n=2, output_kind=kind, detokenize=False)
    processor.add(request, params, "prompt", 99.0)
    return processor, told


@pytest.mark.parametrize("kind", ["final", "delta"])
def test_an_observer_is_told_of_steps_first_tokens_and_ends(kind) -> None:
    processor, told = processor_of(kind)
    both = list(SEQUENCES)
    reports = [PromptReport(sequence, 4, None, 0.25, 0.5) for sequence in both]
    ends = [SequenceEnd(sequence, "length") for sequence in both]
    processor.process(StepOutputs(preempted=[10]))
    processor.process(StepOutputs(sequences=both, tokens=[7, 8], prompts=reports))
    processor.process(StepOutputs(sequences=both, tokens=[7, 8]))
    step = processor.process(StepOutputs(sequences=both, tokens=[7, 8], ends=ends))
    assert told.steps == [(both, [], 101.0), (both, [], 102.0), (both, [], 103.0)]
    assert told.first == [(2.0, 2, 4)]
    ((outcome, max_tokens),) = told.ended
    assert max_tokens == 99
    assert outcome.num_output_tokens == 6
    assert (outcome.seconds_in_queue, outcome.seconds_in_prefill) == (0.25, 0.5)
    (output,) = step.outputs
    assert output.metrics.seconds_in_queue == 0.25


def test_an_observer_is_told_of_an_abort() -> None:
    processor, told = processor_of("delta")
    processor.abort("r")
    ((outcome, _),) = told.ended
    assert outcome.finish_reasons == ("abort", "abort")
    assert outcome.seconds_in_queue is None
