"""Steps that bring several tokens of a sequence become the outputs of tokens one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

import sample_tokenizers
from octavo.detokenizing import OutputProcessor
from octavo.messages import (
    EngineRequest,
    SequenceEnd,
    SequenceLogprobs,
    StepOutputs,
    TokenSampling,
)
from octavo.outputs import RequestOutput
from octavo.params import SamplingParams

EOS = 1
TEXT = "the quick brown fox 😀 jumps over the dog"


def answer(
    ids: list[int], sizes: list[int], params: SamplingParams, last: Any
) -> tuple[list[RequestOutput], list[int]]:
    """The outputs and aborts of one sequence whose steps bring so many tokens each."""
    processor = OutputProcessor(sample_tokenizers.load("byte_level"), clock=lambda: 0.0)
    sampling = TokenSampling(seed=0, max_tokens=99)
    request = EngineRequest(
        request_id="r", sequences=(10,), prompt_token_ids=[5, 6], sampling=sampling
    )
    processor.add(request, params, "prompt", 0.0)
    made: list[RequestOutput] = []
    aborts: list[int] = []
    end = 0
    for size in sizes:
        begin, end = end, end + size
        entries = [SequenceLogprobs([ids[at], 7], [-at, -99.0], 1) for at in range(begin, end)]
        outputs = StepOutputs(logprobs={} if params.logprobs is None else {10: entries})
        outputs.add(10, ids[begin:end])
        if end == len(ids):
            outputs.ends.append(SequenceEnd(10, last))
        processed = processor.process(outputs)
        made += processed.outputs
        aborts += processed.aborts
    return made, aborts


def whole(made: list[RequestOutput]) -> tuple[Any, ...]:
    """What a caller has in the end, however it came."""
    parts = [output.outputs[0] for output in made]
    return (
        "".join(part.text for part in parts),
        [token for part in parts for token in part.token_ids],
        [entry for part in parts for entry in part.logprobs or []],
        [start for part in parts for start in part.token_starts or []],
        (parts[-1].finish_reason, parts[-1].stop_reason, parts[-1].cumulative_logprob),
    )


@pytest.mark.parametrize("output_kind", ["cumulative", "delta", "final"])
@pytest.mark.parametrize(
    ("params", "last", "text"),
    [
        ({}, "length", None),
        ({"logprobs": 1}, "stop", TEXT),
        ({"stop": ["own fo", "s ov"]}, "stop", "the quick br"),
        ({"stop": ["own fo"], "logprobs": 0, "min_tokens": 1}, "length", "the quick br"),
        ({"stop": ["the q"], "logprobs": 0, "min_tokens": 9}, "length", None),
    ],
)
def test_in_bursts_an_answer_is_what_it_is_token_by_token(
    output_kind: Any, params: dict[str, Any], last: str, text: str | None
) -> None:
    tokenizer = sample_tokenizers.load("byte_level")
    ids = [*tokenizer.encode(TEXT), EOS]
    sampling = SamplingParams(output_kind=output_kind, **params)
    only_last = slice(None) if output_kind == "delta" else slice(-1, None)
    made, aborts = answer(ids, [1] * len(ids), sampling, last)
    expected = whole(made[only_last])
    assert expected[0] == (tokenizer.decode(ids) if text is None else text)
    rng = random.Random(0)
    for _ in range(8):
        sizes: list[int] = []
        while left := len(ids) - sum(sizes):
            sizes.append(min(left, rng.randint(1, 5)))
        in_bursts, aborts_of_bursts = answer(ids, sizes, sampling, last)
        assert whole(in_bursts[only_last]) == expected
        # One that ends in the burst that holds the stop string has nothing left to abort.
        assert aborts_of_bursts in (aborts, [])
