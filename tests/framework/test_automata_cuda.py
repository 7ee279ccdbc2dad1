"""Byte automata on a CUDA device: in recorded steps, and in those that are launched."""

from __future__ import annotations

import pytest
import torch

from octavo import LLM, GuidedParams, SamplingParams
from octavo.sampling.automata import DeviceAutomata

pytestmark = pytest.mark.gpu

OPTIONS = {
    "dtype": "float32",
    "device": "cuda",
    "kv_cache_memory_gib": 0.1,
    "max_num_seqs": 40,
    "plugins": ["automaton_guides"],
}
KINDS = ("nested", "others", "short")


def guided(backend: str, kind: str, seed: int, **more) -> SamplingParams:
    wanted = {"temperature": 1.0, "max_tokens": 40, "seed": seed, **more}
    return SamplingParams(guided=GuidedParams(grammar=kind, backend=backend), **wanted)


def run(llm: LLM, *backends: str, **more):
    """Rows of automata and free ones, in turn, greedy and drawn, of different lengths."""
    params = []
    for i in range(36):
        backend = backends[i % len(backends)]
        if i % 5 == 0:
            params.append(SamplingParams(seed=i, max_tokens=40, ignore_eos=True))
        else:
            greedy = {"temperature": 0.0} if i % 4 == 1 else {}
            params.append(guided(backend, KINDS[i % 3], i, **greedy, **more))
    prompts = [{"prompt_token_ids": list(range(300, 305 + 3 * i))} for i in range(36)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * 36
    return [(each.token_ids, each.logprobs) for output in outputs for each in output.outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enforce_eager": True},
        {"async_depth": 1},
        {"async_depth": 3},
        {"max_num_batched_tokens": 41},
        {"num_blocks": 40, "max_model_len": 256},
        {"num_blocks": 40, "max_model_len": 256, "preemption_mode": "swap"},
    ],
    ids=str,
)
def test_tokens_are_those_of_masks_from_the_host(options) -> None:
    with LLM("octavo/tiny", **OPTIONS, **options) as llm:
        assert llm._front.client.ready.masks_on_device
        expected = run(llm, "filled")
        assert run(llm, "walked") == expected
        assert run(llm, "walked", "filled") == expected


def test_logprobs_are_those_of_masks_from_the_host() -> None:
    with LLM("octavo/tiny", **OPTIONS) as llm:
        walked, filled = (run(llm, backend, logprobs=2) for backend in ("walked", "filled"))
    assert [tokens for tokens, _ in walked] == [tokens for tokens, _ in filled]
    for (_, ours), (_, theirs) in zip(walked, filled, strict=True):
        for mine, other in zip(ours or [], theirs or [], strict=True):
            values = [[entry.logprob for entry in each.values()] for each in (mine, other)]
            assert values[0] == pytest.approx(values[1], abs=1e-3)


def test_a_decode_step_with_masked_rows_is_one_replay_that_nobody_waits_for(monkeypatch) -> None:
    launched = []
    masks = DeviceAutomata.masks

    def noted(self, slots_R):
        launched.append(len(slots_R))
        return masks(self, slots_R)

    with LLM("octavo/tiny", **OPTIONS) as llm:
        expected = run(llm, "walked")  # records the kinds
        core = llm._front.client._core
        while core.use_idle_time():  # all their sizes
            pass
        plans = []
        submit = core._executor.submit
        core._executor.submit = lambda plan: plans.append(plan) or submit(plan)
        monkeypatch.setattr(DeviceAutomata, "masks", noted)
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert run(llm, "walked") == expected
        finally:
            torch.cuda.set_sync_debug_mode("default")
    masked = [plan for plan in plans if plan.masked]
    assert len(masked) > 20
    assert len(launched) == sum(not plan.is_decode for plan in masked) < 10
