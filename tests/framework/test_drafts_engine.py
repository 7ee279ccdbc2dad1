"""Rows with drafts through the whole engine: whatever is proposed, tokens are those without."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from octavo import LLM, GuidedParams, SamplingParams
from octavo.execution.runner import ModelRunner
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.slots import Yields
from octavo.steps.device_state import DeviceState
from octavo.steps.plan import StepPlan

MOST = 4
"""Tokens that a row may yield."""
PROMPTS = [list(range(300 + 7 * i, 310 + 16 * i)) for i in range(6)]

Propose = Callable[[list[int], int], list[int]]
"""Drafts behind the tokens of a row, of which the first so many are its prompt's."""


class Proposer:
    """Writes drafts behind the tokens of rows before each step that has room for some."""

    def __init__(self) -> None:
        self.propose: Propose | None = None
        self.num_tokens = self.num_steps = 0

    def begin(self, state: DeviceState, plan: StepPlan) -> None:
        self.num_steps += 1
        if plan.most_yield == 1 or self.propose is None:
            return
        for slot in plan.slots.tolist():
            count = int(state["num_tokens"][slot])
            tokens = state["tokens"][slot, :count].tolist()
            drafts = self.propose(tokens, int(state["prompt_len"][slot]))
            room = state["tokens"][slot, count : count + len(drafts)]
            room.copy_(torch.tensor(drafts[: len(room)], dtype=torch.int32))
            state["num_drafts"][slot] = len(drafts)


@pytest.fixture(scope="module")
def proposer() -> Iterator[Proposer]:
    proposer, patch = Proposer(), pytest.MonkeyPatch()
    make, run = Scheduler.__init__, ModelRunner.run

    def made(scheduler: Scheduler, *given: Any, **more: Any) -> None:
        make(scheduler, *given, yields=Yields(1, MOST), **more)

    def running(runner: ModelRunner, plan: StepPlan) -> Any:
        with torch.inference_mode():
            proposer.begin(runner.state, plan)
        return run(runner, plan)

    patch.setattr(Scheduler, "__init__", made)
    patch.setattr(ModelRunner, "run", running)
    yield proposer
    patch.undo()


@pytest.fixture(scope="module")
def start(proposer: Proposer) -> Callable[..., LLM]:
    def start(**options: Any) -> LLM:
        wanted = {"dtype": "float32", "num_threads": 1, "max_num_seqs": 8, **options}
        return LLM("octavo/tiny", plugins=["automaton_guides"], **wanted)

    return start


@pytest.fixture(scope="module")
def llm(start: Callable[..., LLM]) -> Iterator[LLM]:
    with start() as llm:
        yield llm


def ask(llm: LLM, params: list[SamplingParams]) -> list[tuple]:
    """All that requests were told but logprobs."""
    return told(generate(llm, params))


def generate(llm: LLM, params: list[SamplingParams]) -> list[Any]:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS[: len(params)]]
    return llm.generate(prompts, params, use_tqdm=False)


def told(outputs: list[Any]) -> list[tuple]:
    return [
        (output.error, each.token_ids, each.text, each.finish_reason, each.stop_reason)
        for output in outputs
        for each in output.outputs
    ]


def replay(
    found: list[tuple],
    params: list[SamplingParams],
    wrong: int,
    prompts: list[list[int]] = PROMPTS,
) -> Propose:
    """The tokens that rows are to have, each ``wrong``th of them another."""
    known = []
    texts = iter(found)
    for prompt, each in zip(prompts, params, strict=False):
        known += [prompt + next(texts)[1] for _ in range(each.n)]
    turns = itertools.count(1)

    def propose(tokens: list[int], prompt_len: int) -> list[int]:
        count = len(tokens)
        behind = next((text[count:] for text in known if text[:count] == tokens), [])
        return [token ^ 1 if next(turns) % wrong == 0 else token for token in behind[: MOST - 1]]

    return propose


def hostile(tokens: list[int], prompt_len: int) -> list[int]:
    rng = np.random.default_rng(len(tokens))
    kinds = [-1, 2**31 - 1, -(2**31), 10**6, int(rng.integers(0, 500)), tokens[-1], 0]
    return [int(token) for token in rng.choice(kinds, int(rng.integers(0, 3 * MOST)))]


def variants() -> dict[str, list[SamplingParams]]:
    long = {"max_tokens": 24, "ignore_eos": True}
    walked, filled = (
        GuidedParams(grammar="nested", backend=backend) for backend in ("walked", "filled")
    )
    return {
        "greedy": [SamplingParams(temperature=0.0, **long)] * 3,
        "random": [SamplingParams(temperature=1.0, seed=i, top_p=0.9, **long) for i in range(4)],
        "edits": [
            SamplingParams(
                **{"temperature": 1.0, "seed": i, "presence_penalty": 0.7, "min_tokens": 6},
                **{"repetition_penalty": 1.3, "frequency_penalty": 0.2, "max_tokens": 24},
                **{"stop_token_ids": list(range(200, 260))},
            )
            for i in range(4)
        ],
        "stops": [
            SamplingParams(temperature=1.0, seed=i, max_tokens=24, stop=["e", " t"])
            for i in range(4)
        ],
        "lengths": [
            SamplingParams(temperature=1.0, seed=i, max_tokens=1 + i, ignore_eos=True)
            for i in range(6)
        ],
        "families": [SamplingParams(temperature=1.0, n=3, seed=i, **long) for i in range(2)],
        "automata": [
            SamplingParams(temperature=1.0, seed=i, max_tokens=30, guided=walked if i % 2 else None)
            for i in range(4)
        ],
        "guides of the host": [
            SamplingParams(temperature=1.0, seed=i, max_tokens=30, guided=filled if i % 2 else None)
            for i in range(4)
        ],
    }


@pytest.mark.parametrize("kind", variants())
def test_tokens_are_those_without_drafts_whatever_is_proposed(llm, proposer, kind) -> None:
    params = variants()[kind]
    proposer.propose, proposer.num_steps = None, 0
    expected = ask(llm, params)
    num_steps = proposer.num_steps
    for wrong in (10**9, 3):
        proposer.propose, proposer.num_steps = replay(expected, params, wrong), 0
        assert ask(llm, params) == expected
        if kind not in ("lengths", "stops", "guides of the host"):
            assert proposer.num_steps < 0.8 * num_steps, "drafts save steps"
    proposer.propose = hostile
    assert ask(llm, params) == expected


def test_logprobs_are_those_without_drafts(llm, proposer) -> None:
    wanted = {"max_tokens": 16, "ignore_eos": True, "logprobs": 2}
    params = [SamplingParams(temperature=1.0, seed=i, **wanted) for i in range(3)]
    proposer.propose = None
    outputs = generate(llm, params)
    proposer.propose = replay(told(outputs), params, 4)
    for found, expected in zip(generate(llm, params), outputs, strict=True):
        assert found.outputs[0].token_ids == expected.outputs[0].token_ids
        for ours, theirs in zip(
            found.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True
        ):
            assert list(ours) == list(theirs)
            for token, each in ours.items():  # a CPU's sums follow the number of tokens
                assert each.logprob == pytest.approx(theirs[token].logprob, abs=1e-3)
                assert each.rank == theirs[token].rank


@pytest.mark.parametrize(
    "options",
    [
        {"async_depth": 1},
        {"async_depth": 4},
        {"async_depth": 2, "max_num_batched_tokens": 16},
        {"num_blocks": 10, "max_model_len": 128, "preemption_mode": "recompute"},
        {"num_blocks": 10, "max_model_len": 128, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_drafts_in_engines_of_other_kinds(start, proposer, options) -> None:
    params = variants()["random"]
    with start(**options) as llm:
        proposer.propose = None
        expected = ask(llm, params)
        for propose in (replay(expected, params, 4), hostile):
            proposer.propose = propose
            assert ask(llm, params) == expected


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_requests_of_all_kinds_in_a_small_pool_get_what_they_get_alone(
    llm, start, proposer, mode
) -> None:
    """Families fork and rows are preempted, masked or not, with drafts and without."""
    params = [each for kind in variants().values() for each in kind[:2]]
    prompts = [PROMPTS[place % len(PROMPTS)] for place in range(len(params))]
    pairs = [({"prompt_token_ids": ids}, each) for ids, each in zip(prompts, params, strict=True)]
    proposer.propose = None
    alone = [told(llm.generate([prompt], each, use_tqdm=False)) for prompt, each in pairs]
    expected = list(itertools.chain.from_iterable(alone))
    small = {"num_blocks": 14, "max_model_len": 128, "max_num_batched_tokens": 32}
    with start(preemption_mode=mode, async_depth=3, **small) as crowded:
        for propose in (None, replay(expected, params, 4, prompts)):
            proposer.propose = propose
            inputs, each = zip(*pairs, strict=True)
            assert told(crowded.generate(list(inputs), list(each), use_tqdm=False)) == expected
        assert crowded._front.client.call("stats")["num_preemptions"] > 0
