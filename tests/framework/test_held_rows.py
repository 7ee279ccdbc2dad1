"""Hidden rows that are held: a fork, or a sample that is put off, runs no token again."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from octavo import LLM, GuidedParams, SamplingParams
from octavo.sampling.held_rows import HeldRows, held_bytes

PROMPT = list(range(300, 335))


@pytest.fixture(scope="module")
def llm():
    options = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 4}
    with LLM("octavo/tiny", plugins=["every_guide"], **options) as llm:
        yield llm


@contextmanager
def counted(llm: LLM):
    """Tokens of each step that is planned meanwhile."""
    executor, counts = llm._front.client._core._executor, []
    submit = executor.submit
    executor.submit = lambda plan: counts.append(plan.num_tokens) or submit(plan)
    try:
        yield counts
    finally:
        executor.submit = submit


def outputs(llm: LLM, params: SamplingParams, prompt=PROMPT):
    llm.reset_prefix_cache()
    (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    assert output.error is None
    return output.outputs


def logprobs_of(output) -> list[list[float]]:
    return [[each.logprob for each in entry.values()] for entry in output.logprobs]


@pytest.mark.parametrize("length", [1, 16, 35])
def test_a_family_runs_the_tokens_of_its_prompt_once(llm, length) -> None:
    prompt = PROMPT[:length]
    wanted = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True, "logprobs": 3}
    with counted(llm) as counts:
        family = outputs(llm, SamplingParams(n=3, seed=5, **wanted), prompt)
    assert sum(counts) == length + 3 * 5
    for index, found in enumerate(family):
        (alone,) = outputs(llm, SamplingParams(seed=5 + index, **wanted), prompt)
        assert found.token_ids == alone.token_ids
        for ours, theirs in zip(logprobs_of(found), logprobs_of(alone), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)


def test_followers_that_wait_for_a_slot_sample_from_the_row_their_leader_left(llm) -> None:
    """Four slots, in which the leader runs on while others end and give theirs to more."""
    wanted = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    alone = [outputs(llm, SamplingParams(seed=5 + i, **wanted))[0].token_ids for i in range(7)]
    stop = sorted({tokens[1] for tokens in alone[1:]} - set(alone[0]))
    with counted(llm) as counts:
        family = outputs(llm, SamplingParams(n=7, seed=5, stop_token_ids=stop, **wanted))
    found = [each.token_ids for each in family]
    assert found == [tokens[: len(each)] for tokens, each in zip(alone, found, strict=True)]
    assert max(map(len, found[1:])) < len(found[0]) == 20
    # A stop is seen one step late; of no other token than the one behind it.
    assert sum(counts) <= 35 + sum(map(len, found)) - 7 + sum(len(each) < 20 for each in found)


@pytest.mark.parametrize("n", [1, 3])
def test_a_row_whose_sample_is_put_off_runs_no_token_again(llm, n) -> None:
    def run(manner: str):
        params = SamplingParams(
            n=n,
            guided=GuidedParams(grammar=manner),
            temperature=1.0,
            seed=3,
            max_tokens=64,
            logprobs=2,
        )
        with counted(llm) as counts:
            found = outputs(llm, params)
        return found, counts

    quick, counts = run("quick")
    slow, more_counts = run("slow")
    assert [each.token_ids for each in slow] == [each.token_ids for each in quick]
    least = 35 + sum(len(each.token_ids) - 1 for each in quick)
    # The last tokens may run, too, while the host learns that the guide is at its end.
    assert least <= sum(counts) <= least + n
    assert least <= sum(more_counts) <= least + n
    assert len(more_counts) > len(counts), "nothing was put off"
    for ours, theirs in zip(map(logprobs_of, slow), map(logprobs_of, quick), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one == pytest.approx(other, abs=1e-4)


def test_lines_of_slots_and_of_their_families_are_apart() -> None:
    held = HeldRows(3)
    rows_RD = torch.arange(8.0).view(2, 4)
    slots_R = torch.tensor([2, 0], dtype=torch.int32)
    held.keep_for_family(slots_R, rows_RD)
    held.put_off(slots_R, -rows_RD)
    lines_R = torch.tensor([2, 0, 5, 3], dtype=torch.int32)
    assert torch.equal(held.at(lines_R), torch.cat([-rows_RD, rows_RD]))
    assert held._held_HD.nbytes == held_bytes(3, 4 * 4)
