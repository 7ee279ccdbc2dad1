"""The engine on a CUDA device against the same engine on the CPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.testing.random_model import make_random_model

pytestmark = pytest.mark.gpu

VOCAB = 512
POOL = {"kv_cache_memory_gib": 0.1}
"""Tests that run at a time share a device, of which one engine would take nearly all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_random_model(path, vocab_size=VOCAB, num_hidden_layers=3, max_position_embeddings=512)
    return path


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, list[int]]]:
    rng = random.Random(0)
    return [
        {"prompt_token_ids": [rng.randrange(10, VOCAB) for _ in range(rng.randint(1, 90))]}
        for _ in range(20)
    ]


def run(folder: Path, prompts, params: SamplingParams, **options) -> list[list[list[int]]]:
    with LLM(str(folder), dtype="float32", **{**POOL, **options}) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert all(output.error is None for output in outputs)
        return [[o.token_ids for o in output.outputs] for output in outputs]


GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)


@pytest.fixture(scope="module")
def on_cpu(folder, prompts):
    return run(folder, prompts, GREEDY, device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_depth": 1},
        {"max_num_batched_tokens": 13},
        {"num_blocks": 40, "max_model_len": 160},
        {"num_blocks": 40, "max_model_len": 160, "preemption_mode": "swap"},
    ],
    ids=["plain", "one step at a time", "chunked", "recompute", "swap"],
)
def test_float32_on_cuda_gives_the_tokens_of_the_cpu(folder, prompts, on_cpu, options):
    assert run(folder, prompts, GREEDY, device="cuda", **options) == on_cpu


def test_sampled_tokens_are_the_same_on_both_devices(folder, prompts):
    params = SamplingParams(
        n=2,
        temperature=0.9,
        top_p=0.9,
        top_k=40,
        seed=5,
        max_tokens=24,
        ignore_eos=True,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        logit_bias={7: 2.0},
        logprobs=3,
    )
    ours = run(folder, prompts, params, device="cuda")
    theirs = run(folder, prompts, params, device="cpu")
    same = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
    # A draw within rounding of another token may differ, and its continuation with it.
    assert same >= 38


def test_prompt_logprobs_are_the_same_on_both_devices(folder, prompts):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    values = []
    for device in ("cuda", "cpu"):
        with LLM(str(folder), dtype="float32", device=device, **POOL) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        values.append(
            [
                entry[token].logprob
                for output in outputs
                for token, entry in zip(
                    output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=True
                )
            ]
        )
    torch.testing.assert_close(torch.tensor(values[0]), torch.tensor(values[1]), atol=1e-4, rtol=0)


def test_the_host_never_waits_for_the_device_but_for_results(folder, prompts):
    """Any implicit synchronisation raises; waiting for a finished step's event does not."""
    mixed = [
        GREEDY,
        SamplingParams(max_tokens=48, seed=1, ignore_eos=True),
        SamplingParams(max_tokens=48, seed=2, top_p=0.8, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=48, seed=3, top_k=5, min_p=0.05, frequency_penalty=0.3),
    ]
    params = [mixed[i % 4] for i in range(len(prompts))]
    with LLM(str(folder), dtype="float32", device="cuda", **POOL) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [output.error for output in outputs] == [None] * len(prompts)
