"""Guided rows among others: whatever happens to a step, the tokens are those of a run alone."""

from __future__ import annotations

import numpy as np
import pytest

from every_guide import NUM_TOKENS
from octavo import LLM, BeamSearchParams, GuidedParams, SamplingParams
from octavo.guided.sequence import CompiledGuide, GuidedSequence


@pytest.fixture(scope="module")
def start():
    def start(**options) -> LLM:
        wanted = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 12, **options}
        return LLM("octavo/tiny", plugins=["every_guide"], **wanted)

    return start


def guided(manner: str = "quick", **more) -> SamplingParams:
    wanted = {"temperature": 1.0, "max_tokens": 64, **more}
    return SamplingParams(guided=GuidedParams(grammar=manner), **wanted)


def free(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=30, ignore_eos=True)


def tokens_of(outputs) -> list[list[int]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [each.token_ids for output in outputs for each in output.outputs]


def run(llm: LLM, manner: str = "quick", *, num: int = 4, **more) -> list[list[int]]:
    """Guided and free requests, in turn, of prompts of different lengths."""
    prompts = [{"prompt_token_ids": list(range(300, 310 + 9 * i))} for i in range(2 * num)]
    params = [guided(manner, seed=i, **more) if i % 2 else free(i) for i in range(2 * num)]
    return tokens_of(llm.generate(prompts, params, use_tqdm=False))


@pytest.fixture(scope="module")
def llm(start):
    with start() as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(start) -> list[list[int]]:
    with start(max_num_seqs=1, async_depth=1) as llm:
        return run(llm)


def test_each_guided_token_is_one_that_the_guide_allows(expected) -> None:
    for tokens in expected[1::2]:
        sums = np.cumsum(tokens)
        assert len(tokens) == NUM_TOKENS
        assert not (sums % 7).any()
    assert all(len(tokens) == 30 for tokens in expected[::2])


def test_tokens_do_not_depend_on_neighbours(llm, expected) -> None:
    assert run(llm) == expected
    assert run(llm) == expected  # now from the prefix cache


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"async_depth": 1},
        {"async_depth": 3},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 14, "block_size": 16, "max_model_len": 160},
        {"num_blocks": 14, "block_size": 16, "max_model_len": 160, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_depth_chunks_or_preemption(start, expected, options) -> None:
    with start(**options) as llm:
        assert run(llm) == expected
        assert ("num_blocks" in options) == (llm._front.client.call("stats")["num_preemptions"] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
def test_at_any_depth_a_late_row_sits_out_steps(start, expected, depth) -> None:
    with start(async_depth=depth) as llm:
        assert run(llm, "slow") == expected


def test_a_row_whose_mask_is_late_sits_out_steps_and_no_token_changes(llm, expected) -> None:
    assert run(llm, "slow") == expected


def test_tokens_without_a_choice_are_appended_without_a_draw(llm, expected) -> None:
    assert run(llm, "forced") == expected
    prompts = [{"prompt_token_ids": list(range(300, 319))}]
    for length in range(1, NUM_TOKENS):  # a length limit may fall among them
        params = guided("forced", seed=1, max_tokens=length)
        (found,) = tokens_of(llm.generate(prompts, params, use_tqdm=False))
        assert found == expected[1][:length]


def test_tokens_are_appended_where_that_saves_more_steps_than_it_costs(llm) -> None:
    def num_steps(manner: str, num_others: int) -> int:
        params = [guided(manner, seed=1), *(free(i) for i in range(num_others))]
        before = llm._front.client._core._tokens.scheduler._step_id
        llm.generate([{"prompt_token_ids": [300, 301]}] * len(params), params, use_tqdm=False)
        return llm._front.client._core._tokens.scheduler._step_id - before

    assert num_steps("forced", 0) < num_steps("quick", 0)
    assert num_steps("forced", 3) == num_steps("quick", 3)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["slow", "forced", "slow and forced"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_late_rows_that_are_preempted_go_on_as_they_were(start, expected, manner, mode) -> None:
    pool = {"num_blocks": 14, "block_size": 16, "max_model_len": 160}
    with start(**pool, preemption_mode=mode) as llm:
        assert run(llm, manner) == expected


def test_continuations_of_one_prompt_have_a_state_each(llm) -> None:
    (output,) = llm.generate(
        {"prompt_token_ids": list(range(300, 330))},
        guided("slow", n=5, seed=3, temperature=3.0),
        use_tqdm=False,
    )
    texts = [each.token_ids for each in output.outputs]
    assert len({tuple(tokens) for tokens in texts}) == 5
    assert all(len(t) == NUM_TOKENS and not (np.cumsum(t) % 7).any() for t in texts)


def test_logprobs_are_those_of_the_tokens(llm, expected) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 319))}]
    (output,) = llm.generate(prompts, guided("slow", seed=1, logprobs=2), use_tqdm=False)
    (found,) = output.outputs
    assert found.token_ids == expected[1]
    assert [next(iter(each)) for each in found.logprobs] == found.token_ids


def test_a_guide_that_fails_ends_its_own_request(llm, expected) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 310 + 9 * i))} for i in range(4)]
    params = [free(0), guided(seed=1), guided("breaks"), guided("empty")]
    first, second, third, fourth = llm.generate(prompts, params, use_tqdm=False)
    assert tokens_of([first, second]) == expected[:2]
    assert third.error is not None
    assert "no more" in third.error
    assert len(third.outputs[0].token_ids) == 5
    assert fourth.error is not None
    assert "no token continues" in fourth.error
    assert run(llm) == expected
    assert llm._front.client.call("stats")["num_live_blocks"] == 0


def test_a_guide_that_does_not_compile_ends_its_own_request(llm, expected) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 310 + 9 * i))} for i in range(3)]
    first, second, third = llm.generate(
        prompts, [free(0), guided(seed=1), guided("bad")], use_tqdm=False
    )
    assert tokens_of([first, second]) == expected[:2]
    assert third.error is not None
    assert "cannot be compiled" in third.error


def test_others_run_while_a_guide_is_compiled(llm) -> None:
    prompts = [{"prompt_token_ids": [300, 301, 302]}] * 2
    first, second = llm.generate(prompts, [free(0), guided("long")], use_tqdm=False)
    assert first.metrics.finished_seconds is not None
    assert second.metrics.first_token_seconds is not None
    assert first.metrics.first_token_seconds < second.metrics.first_token_seconds


def test_other_parameters_that_ban_all_that_the_guide_allows_fail_the_request(llm) -> None:
    (output,) = llm.generate(
        {"prompt_token_ids": [300]}, guided(allowed_token_ids=[302]), use_tqdm=False
    )
    assert output.error is not None
    assert "not allowed" in output.error


def test_a_stop_id_among_tokens_without_a_choice_ends_the_text(llm, expected) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 319))}]
    stop = expected[1][3]  # the second and third of a run have no choice
    wanted = expected[1][: expected[1].index(stop) + 1]
    for manner in ("quick", "forced"):
        params = guided(manner, seed=1, stop_token_ids=[stop])
        (found,) = tokens_of(llm.generate(prompts, params, use_tqdm=False))
        assert found == wanted


def test_tokens_without_a_choice_are_banned_as_others_are(llm, expected) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 319))}]
    banned = expected[1][3]
    allowed = [token for token in range(300, 2048) if token != banned]
    for manner in ("quick", "forced"):
        (output,) = llm.generate(
            prompts, guided(manner, seed=1, allowed_token_ids=allowed), use_tqdm=False
        )
        assert output.error_type == "ParameterError"
        assert banned not in output.outputs[0].token_ids


def test_prompt_logprobs_are_whole_where_the_answer_begins_without_a_choice(llm) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 319))}]
    (output,) = llm.generate(prompts, guided("all forced", prompt_logprobs=1), use_tqdm=False)
    assert output.error is None
    assert [each is None for each in output.prompt_logprobs] == [True] + [False] * 18


def test_a_token_that_the_guide_refuses_is_not_told(llm) -> None:
    (output,) = llm.generate(
        {"prompt_token_ids": [300]}, guided(allowed_token_ids=[302]), use_tqdm=False
    )
    assert output.outputs[0].token_ids == []


@pytest.mark.parametrize("manner", ["bad start", "bad end", "panics"])
def test_a_guide_that_raises_anywhere_fails_its_own_request(llm, expected, manner) -> None:
    prompts = [{"prompt_token_ids": list(range(300, 310 + 9 * i))} for i in range(3)]
    first, second, third = llm.generate(
        prompts, [free(0), guided(seed=1), guided(manner)], use_tqdm=False
    )
    assert tokens_of([first, second]) == expected[:2]
    assert "not now" in third.error


def test_a_beam_that_no_token_continues_is_dropped_and_the_others_go_on(llm) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=3, guided=GuidedParams(grammar="dead ends"))
    first, second = llm.beam_search(
        [{"prompt_token_ids": [300]}, {"prompt_token_ids": [301]}], params
    )
    for beams in (first.sequences, second.sequences):
        assert beams
        assert {beam.finish_reason for beam in beams} == {"length"}
        assert not any((np.cumsum(beam.token_ids)[:-1] % 2).any() for beam in beams)


class Ended:
    """A state whose text is whole, in a vocabulary without a token that ends it."""

    def forced(self) -> list[int]:
        return []

    def fill_bitmask(self, row) -> None:
        row[:] = 0

    def is_finished(self) -> bool:
        return True

    def start(self):
        return self


def test_a_text_that_is_whole_needs_no_token_that_ends_it() -> None:
    ended = GuidedSequence(CompiledGuide(Ended()), 32)
    ended.fill()
    assert ended.error is None
    assert ended.is_finished
