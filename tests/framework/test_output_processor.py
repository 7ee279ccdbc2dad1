"""Steps of an engine become outputs: text, ends, logprobs, metrics."""

from __future__ import annotations

import time
from typing import Any

import pytest

import sample_tokenizers
from octavo.detokenizing import OutputProcessor
from octavo.errors import ParameterError
from octavo.messages import (
    EngineRequest,
    PromptReport,
    SequenceEnd,
    SequenceLogprobs,
    StepOutputs,
    TokenSampling,
)
from octavo.outputs import Logprob, RequestOutput
from octavo.params import SamplingParams
from octavo_registry.tokenizer import Tokenizer

EOS = 1


@pytest.fixture
def tokenizer() -> Tokenizer:
    return sample_tokenizers.load("byte_level")


class Bench:
    """A processor with one request whose sequences are 10, 11, ..., and a clock that ticks."""

    def __init__(self, tokenizer: Tokenizer | None, **params: object) -> None:
        self.now = 100.0
        self.processor = OutputProcessor(tokenizer, clock=lambda: self.now)
        self.params = SamplingParams(**params)  # type: ignore[arg-type]
        self.request = EngineRequest(
            request_id="r",
            sequences=tuple(range(10, 10 + self.params.n)),
            prompt_token_ids=[5, 6],
            sampling=TokenSampling(seed=0, max_tokens=99),
        )
        self.processor.add(self.request, self.params, "prompt", 99.0)
        self.aborts: list[int] = []

    def step(self, *tokens: tuple[int, int], **more: object) -> list[RequestOutput]:
        """Process one step of (sequence, token) pairs."""
        self.now += 1.0
        outputs = StepOutputs(
            sequences=[sequence for sequence, _ in tokens],
            tokens=[token for _, token in tokens],
            **more,  # type: ignore[arg-type]
        )
        processed = self.processor.process(outputs)
        self.aborts += processed.aborts
        return processed.outputs

    def run(self, ids: list[int], **last: object) -> list[RequestOutput]:
        """Give sequence 10 one id a step; ``last`` goes with the last id."""
        outputs = []
        for position, token in enumerate(ids):
            more = last if position == len(ids) - 1 else {}
            outputs += self.step((10, token), **more)
        return outputs


def ended(reason: str, stop_token_id: int | None = None, sequence: int = 10) -> dict[str, object]:
    """Step fields for a sequence that ends."""
    return {"ends": [SequenceEnd(sequence, reason, stop_token_id)]}  # type: ignore[arg-type]


def test_cumulative_outputs_hold_all_text_and_tokens_so_far(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("the lazy dog")
    outputs = Bench(tokenizer).run(ids, **ended("length"))
    assert len(outputs) == len(ids)
    assert [o.outputs[0].token_ids for o in outputs] == [ids[: n + 1] for n in range(len(ids))]
    texts = [o.outputs[0].text for o in outputs]
    assert texts == sorted(texts, key=len)
    assert texts[-1] == "the lazy dog"
    assert [o.finished for o in outputs] == [False] * (len(ids) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert (outputs[-1].prompt, outputs[-1].prompt_token_ids) == ("prompt", [5, 6])


def test_deltas_put_together_are_the_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the lazy 😀 dog")
    outputs = [o.outputs[0] for o in Bench(tokenizer, output_kind="delta").run(ids)]
    assert "".join(o.text for o in outputs) == "the lazy 😀 dog"
    assert [token for o in outputs for token in o.token_ids] == ids


def test_a_final_request_is_delivered_once_at_its_end(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind="final")
    (output,) = bench.run([*tokenizer.encode("the lazy dog"), EOS], **ended("stop"))
    assert output.outputs[0].text == "the lazy dog"
    assert output.outputs[0].token_ids[-1] == EOS
    assert bench.processor.abort("r").outputs == []


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final"])
def test_a_stop_string_ends_the_text_and_the_engine_is_told(
    tokenizer: Tokenizer, kind: str
) -> None:
    ids = tokenizer.encode("the quick brown fox jumps over the dog")
    bench = Bench(tokenizer, stop=["own fo", "dog"], output_kind=kind)
    outputs = bench.run(ids, **ended("length"))
    text = "".join(o.outputs[0].text for o in outputs) if kind == "delta" else ""
    last = outputs[-1].outputs[0]
    assert (text or last.text) == "the quick br"
    assert (last.finish_reason, last.stop_reason) == ("stop", "own fo")
    assert bench.aborts == [10]
    if kind != "delta":
        # Tokens count up to the one that completed the stop string, and not one more.
        assert "own fo" in tokenizer.decode(last.token_ids)
        assert "own fo" not in tokenizer.decode(last.token_ids[:-1])


def test_a_stop_string_completed_by_the_engines_last_token_needs_no_abort(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, stop="dog", output_kind="final")
    (output,) = bench.run(tokenizer.encode("the lazy dog"), **ended("length"))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the lazy ", "dog")
    assert bench.aborts == []


def test_the_engines_end_wins_over_a_stop_string_that_is_not_complete(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, stop="dogs", output_kind="final")
    (output,) = bench.run(tokenizer.encode("the lazy dog"), **ended("length"))
    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason) == ("the lazy dog", "length")
    assert completion.stop_reason is None


def test_tokens_after_the_end_are_dropped(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop="x")
    bench.run(tokenizer.encode("x"))
    assert bench.step((10, 7), **ended("length")) == []


def test_stop_strings_do_not_count_among_the_first_min_tokens(tokenizer: Tokenizer) -> None:
    (x,) = tokenizer.encode("x")
    completion = Bench(tokenizer, stop="x", min_tokens=2).run([x, x, x, x])[-1].outputs[0]
    assert (completion.text, completion.token_ids) == ("xx", [x, x, x])


def test_of_several_tokens_in_one_step_those_behind_the_stop_string_are_dropped(
    tokenizer: Tokenizer,
) -> None:
    (a,), (x,) = tokenizer.encode("a"), tokenizer.encode("x")
    (output,) = Bench(tokenizer, stop="x").step((10, a), (10, x), (10, a))
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("a", [a, x])


@pytest.mark.parametrize(
    ("include", "skip_special", "text"),
    [(False, True, "dog"), (False, False, "dog"), (True, True, "dog"), (True, False, "dog</s>")],
)
def test_the_end_token_is_among_the_tokens_and_in_the_text_only_on_request(
    tokenizer: Tokenizer, include: bool, skip_special: bool, text: str
) -> None:
    ids = [*tokenizer.encode("dog"), EOS]
    bench = Bench(tokenizer, include_stop_str_in_output=include, skip_special_tokens=skip_special)
    completion = bench.run(ids, **ended("stop"))[-1].outputs[0]
    assert (completion.text, completion.token_ids) == (text, ids)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_a_stop_token_is_named_as_the_reason(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the dog")
    completion = Bench(tokenizer).run(ids, **ended("stop", ids[-1]))[-1].outputs[0]
    assert completion.text == tokenizer.decode(ids[:-1])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", ids[-1])


def test_several_continuations_come_in_one_output_by_index(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, n=3, output_kind="final")
    a, b, c = (tokenizer.encode(char)[0] for char in "abc")
    assert bench.step((12, c), (10, a), **ended("length", sequence=12)) == []
    assert bench.step((10, a), (11, b), **ended("length", sequence=10)) == []
    (output,) = bench.step((11, b), **ended("length", sequence=11))
    assert [(o.index, o.text) for o in output.outputs] == [(0, "aa"), (1, "bb"), (2, "c")]
    assert output.finished


def test_deltas_of_several_continuations_name_only_those_with_news(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, n=2, output_kind="delta")
    a, b = (tokenizer.encode(char)[0] for char in "ab")
    (first,) = bench.step((10, a), (11, b), **ended("length", sequence=10))
    (second,) = bench.step((11, b), **ended("length", sequence=11))
    assert [(o.index, o.text) for o in first.outputs] == [(0, "a"), (1, "b")]
    assert [(o.index, o.text) for o in second.outputs] == [(1, "b")]
    assert (first.finished, second.finished) == (False, True)


def test_logprobs_carry_rank_and_text_and_are_summed(tokenizer: Tokenizer) -> None:
    fox, dog = (tokenizer.encode(word)[0] for word in (" fox", " dog"))
    bench = Bench(tokenizer, logprobs=2, output_kind="delta")
    entry = SequenceLogprobs([fox, dog, fox], [-0.5, -0.25, -0.5], 2)
    (first,) = bench.step((10, fox), logprobs={10: [entry]})
    (second,) = bench.step((10, fox), logprobs={10: [entry]})
    assert first.outputs[0].logprobs == [
        {fox: Logprob(-0.5, 2, " fox"), dog: Logprob(-0.25, 1, " dog")}
    ]
    assert len(second.outputs[0].logprobs or []) == 1
    assert second.outputs[0].cumulative_logprob == -1.0


def test_logprobs_end_with_the_token_that_completed_a_stop_string(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("ab")
    assert len(ids) == 2
    bench = Bench(tokenizer, logprobs=0, stop="b", output_kind="final")
    bench.step((10, ids[0]), logprobs={10: [SequenceLogprobs([ids[0]], [-1.0], 1)]})
    (output,) = bench.step((10, ids[1]), logprobs={10: [SequenceLogprobs([ids[1]], [-2.0], 1)]})
    assert [list(entry) for entry in output.outputs[0].logprobs or []] == [[i] for i in ids]
    assert output.outputs[0].cumulative_logprob == -3.0


@pytest.mark.parametrize("output_kind", ["final", "delta"])
def test_with_logprobs_each_token_says_where_its_text_begins(
    tokenizer: Tokenizer, output_kind: str
) -> None:
    text = "fox, the naïve 😀👩 dog days"
    encoded = tokenizer.hf(text, add_special_tokens=False, return_offsets_mapping=True)
    bench = Bench(tokenizer, logprobs=0, stop="g d", output_kind=output_kind)
    made = []
    for token in encoded["input_ids"]:
        made += bench.step((10, token), logprobs={10: [SequenceLogprobs([token], [-1.0], 1)]})
    starts = [start for each in made for start in each.outputs[0].token_starts or []]
    assert len(starts) == sum(len(each.outputs[0].token_ids) for each in made)
    assert starts == [begin for begin, _ in encoded["offset_mapping"]][: len(starts)]
    assert len(set(starts)) < len(starts)  # some characters take several tokens
    assert "".join(each.outputs[0].text for each in made) == text.partition("g d")[0]


def test_a_hidden_end_begins_where_the_text_ends(tokenizer: Tokenizer) -> None:
    (a,) = tokenizer.encode("a")
    bench = Bench(tokenizer, logprobs=0, output_kind="final")
    bench.step((10, a), logprobs={10: [SequenceLogprobs([a], [-1.0], 1)]})
    entry = {10: [SequenceLogprobs([EOS], [-1.0], 1)]}
    (output,) = bench.step((10, EOS), logprobs=entry, **ended("stop", EOS))
    assert (output.outputs[0].text, output.outputs[0].token_starts) == ("a", [0, 1])


def test_a_sentencepiece_token_keeps_its_space_in_logprobs() -> None:
    tokenizer = sample_tokenizers.load("sentencepiece")
    token = tokenizer.encode("the")[0]
    bench = Bench(tokenizer, logprobs=0)
    (output,) = bench.step((10, token), logprobs={10: [SequenceLogprobs([token], [-1.0], 1)]})
    text = (output.outputs[0].logprobs or [])[0][token].decoded_token
    assert text is not None
    assert text.startswith(" ")


def test_the_prompt_report_gives_prompt_logprobs_and_metrics(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, prompt_logprobs=0, output_kind="final")
    bench.step(preempted=[10])
    report = PromptReport(10, 16, [SequenceLogprobs([6], [-0.5], 3)])
    bench.step((10, 7), prompts=[report], preempted=[10])
    (output,) = bench.step((10, 7), **ended("length"))
    prompt_logprobs = output.prompt_logprobs or []
    assert prompt_logprobs[0] is None
    assert prompt_logprobs[1] == {6: Logprob(-0.5, 3, tokenizer.decode([6]))}
    metrics = output.metrics
    assert (metrics.arrival_seconds, metrics.first_token_seconds) == (99.0, 102.0)
    assert (metrics.finished_seconds, metrics.num_cached_tokens) == (103.0, 16)
    assert metrics.num_preemptions == 2


def test_the_report_of_the_first_continuation_speaks_for_the_request(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, n=2, prompt_logprobs=0)
    logprobs = [SequenceLogprobs([6], [-0.5], 3)]
    bench.step((10, 7), prompts=[PromptReport(10, 0, logprobs)])
    (output,) = bench.step((10, 7), (11, 7), prompts=[PromptReport(11, 2)])
    assert len(output.prompt_logprobs or []) == 2
    assert (output.metrics.first_token_seconds, output.metrics.num_cached_tokens) == (101.0, 0)


def test_an_abort_gives_the_text_so_far_and_the_sequences_still_running(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, n=2, output_kind="final")
    bench.step((10, tokenizer.encode("a")[0]), (11, 8), **ended("length", sequence=11))
    processed = bench.processor.abort("r")
    assert processed.aborts == [10]
    (output,) = processed.outputs
    assert [o.finish_reason for o in output.outputs] == ["abort", "length"]
    assert (output.outputs[0].text, output.finished) == ("a", True)
    assert bench.processor.abort("r").outputs == []


def test_tokens_that_nobody_watches_are_all_there_in_the_end() -> None:
    bench = Bench(None, n=2, output_kind="final", detokenize=False)
    steps = range(150)
    for token in steps:
        assert bench.step((10, token), (11, 1000 + token)) == []
    assert bench.step((10, 7), (11, 8), **ended("length")) == []
    for token in steps[:70]:
        bench.step((11, 2000 + token))
    (output,) = bench.processor.abort("r").outputs
    assert output.outputs[0].token_ids == [*steps, 7]
    assert output.outputs[1].token_ids == [1000 + i for i in steps] + [8] + [
        2000 + i for i in steps[:70]
    ]


def test_one_sequences_error_reaches_its_request(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    (output,) = bench.step(ends=[SequenceEnd(10, "error", None, "out of memory")])
    assert (output.error, output.outputs[0].finish_reason) == ("out of memory", "error")


def test_a_tokenizer_that_fails_on_a_request_fails_that_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor = OutputProcessor(BrokenOn(7))
    for name, sequences in (("bad", (1, 2)), ("good", (3,))):
        request = EngineRequest(
            request_id=name,
            sequences=sequences,
            prompt_token_ids=[5],
            sampling=TokenSampling(seed=0, max_tokens=9),
        )
        processor.add(request, SamplingParams(n=len(sequences)), None, 0.0)
    step = processor.process(StepOutputs(sequences=[1, 2, 3], tokens=[7, 8, 9]))
    bad, good = step.outputs
    assert bad.finished
    assert bad.error == "the tokenizer failed in decode: RuntimeError: no such token"
    assert bad.error_type == "PluginError"
    assert [o.finish_reason for o in bad.outputs] == ["error", "error"]
    assert step.aborts == [1, 2]
    assert (good.error, good.finished, good.outputs[0].token_ids) == (None, False, [9])
    assert "cannot be decoded" in caplog.text


class BrokenOn:
    """A tokenizer that raises for one id."""

    def __init__(self, token: int) -> None:
        self._inner = sample_tokenizers.load("byte_level")
        self._token = token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decode(self, ids: list[int], *flags: bool, **options: bool) -> str:
        if self._token in ids:
            raise RuntimeError("no such token")
        return self._inner.decode(ids, *flags, **options)


@pytest.mark.parametrize("detokenize", [False, True])
def test_without_detokenizing_text_stays_empty(tokenizer: Tokenizer, detokenize: bool) -> None:
    bench = Bench(None if detokenize else tokenizer, detokenize=detokenize, logprobs=0)
    (output,) = bench.step((10, 9), logprobs={10: [SequenceLogprobs([9], [-1.0], 1)]})
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [9])


def test_a_request_id_in_use_is_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    with pytest.raises(ParameterError, match="request_id='r' is in use"):
        bench.processor.add(bench.request, bench.params, None, 0.0)


def test_a_step_of_256_final_requests_takes_far_less_than_a_millisecond(
    tokenizer: Tokenizer,
) -> None:
    processor = OutputProcessor(tokenizer)
    params = SamplingParams(temperature=0, output_kind="final")
    for sequence in range(256):
        request = EngineRequest(
            request_id=str(sequence),
            sequences=(sequence,),
            prompt_token_ids=[5],
            sampling=TokenSampling(seed=0, max_tokens=99),
        )
        processor.add(request, params, None, 0.0)
    step = StepOutputs(sequences=list(range(256)), tokens=[9] * 256)
    start = time.process_time()
    for _ in range(100):
        processor.process(step)
    assert (time.process_time() - start) / 100 < 0.3e-3
