"""16-bit inference on a CUDA device against float32, in every way that a step can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trained_model
from octavo import LLM, SamplingParams
from octavo.testing.random_model import make_random_model

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
NUM_PROMPTS = 40
POOL = {"kv_cache_memory_gib": 0.1}
"""Tests that run at a time share a device, of which one engine would take nearly all."""
Tokens = list[list[int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    trained_model.train(path)
    return path


@pytest.fixture(scope="module")
def prompts(folder: Path) -> Tokens:
    language = trained_model.Language(1, "cpu")
    sequences = language.sequences(NUM_PROMPTS, 170).tolist()
    return [tokens[: 6 + 4 * index] for index, tokens in enumerate(sequences)]


def generate(folder: Path, prompts: Tokens, **options: Any) -> Tokens:
    options = {"dtype": "bfloat16", **POOL, **options}
    with LLM(str(folder), device="cuda", skip_tokenizer_init=True, **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(prompts)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def in_float32(folder: Path, prompts: Tokens) -> Tokens:
    return generate(folder, prompts, dtype="float32")


def agreement(found: Tokens, expected: Tokens) -> float:
    pairs = [pair for a, b in zip(found, expected, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


SMALL_POOL = {"num_blocks": 90, "max_model_len": 320}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enforce_eager": True},
        {"attention_backend": "paged"},
        {"dtype": "float16"},
        {"async_depth": 1},
        {"max_num_batched_tokens": 13},
        {"max_num_seqs": 3},
        SMALL_POOL,
        {**SMALL_POOL, "preemption_mode": "swap"},
        {"batch_invariant": True},
    ],
    ids=[
        "recorded",
        "eager",
        "paged",
        "float16",
        "one step at a time",
        "chunked",
        "three rows",
        "recompute",
        "swap",
        "batch invariant",
    ],
)
def test_16_bits_give_the_tokens_of_float32(folder, prompts, in_float32, options):
    """Not even teacher-forced: one other token would change all that follow it."""
    assert agreement(generate(folder, prompts, **options), in_float32) >= 0.99


def test_a_cache_of_8_bits_gives_nearly_the_tokens_of_float32(folder, prompts, in_float32):
    assert agreement(generate(folder, prompts, kv_cache_dtype="fp8"), in_float32) >= 0.95


def test_prompts_found_in_the_cache_change_nothing(folder, prompts, in_float32):
    longer = [p + answer[:64] for p, answer in zip(prompts, in_float32, strict=True)]
    options = {"dtype": "bfloat16", "device": "cuda", "skip_tokenizer_init": True}
    with LLM(str(folder), **POOL, **options) as llm:
        llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False)
        params = SamplingParams(temperature=0.0, max_tokens=56, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in longer], params, use_tqdm=False)
        assert sum(output.metrics.num_cached_tokens for output in outputs) > 64 * NUM_PROMPTS
    found = [output.outputs[0].token_ids for output in outputs]
    assert agreement(found, [answer[64:] for answer in in_float32]) >= 0.99


@pytest.mark.parametrize("chunk", [8192, 37])
def test_teacher_forced_choices_are_those_of_float32_or_close(folder, prompts, in_float32, chunk):
    """Of the positions of given text at least 99 % agree; each other one was nearly a tie."""
    texts = [p + answer for p, answer in zip(prompts, in_float32, strict=True)]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    tables = []
    for dtype in ("bfloat16", "float32"):
        options = {"dtype": dtype, "max_num_batched_tokens": chunk, "skip_tokenizer_init": True}
        with LLM(str(folder), device="cuda", **POOL, **options) as llm:
            outputs = llm.generate([{"prompt_token_ids": t} for t in texts], params, use_tqdm=False)
        tables.append([entry for o in outputs for entry in (o.prompt_logprobs or [])[1:]])
    same = 0
    for ours, theirs in zip(*tables, strict=True):
        best = max(theirs, key=lambda token: theirs[token].logprob)
        choice = max(ours, key=lambda token: ours[token].logprob)
        same += choice == best
        if choice != best and choice in theirs:
            assert theirs[best].logprob - theirs[choice].logprob <= 0.05
    assert same >= 0.99 * len(tables[0])


@pytest.fixture(scope="module")
def vague(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: the best two logits are so often close that rounding changes tokens."""
    return make_random_model(
        tmp_path_factory.mktemp("vague"),
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
    )


def test_batch_invariant_tokens_depend_on_nothing_else(vague):
    """Identical tokens whatever the batch, the chunks, the cache and preemption."""
    torch.manual_seed(3)
    prompts = [torch.randint(10, 4000, (n,)).tolist() for n in range(3, 160, 4)]
    ways: list[dict[str, Any]] = [
        {"max_num_batched_tokens": 13},
        {"max_num_seqs": 3},
        {"enforce_eager": True},
        SMALL_POOL,
        {**SMALL_POOL, "preemption_mode": "swap"},
    ]
    expected = generate(vague, prompts, batch_invariant=True)
    for way in ways:
        assert generate(vague, prompts, batch_invariant=True, **way) == expected, way
    alone = [generate(vague, [prompt], batch_invariant=True)[0] for prompt in prompts[::8]]
    assert alone == expected[::8]
    # Else this proves nothing: without the option one of these ways gives other tokens.
    plain = generate(vague, prompts)
    assert any(generate(vague, prompts, **way) != plain for way in ways)


def test_batch_invariant_logits_of_long_contexts_depend_on_nothing_else(tmp_path):
    """Log probabilities to the bit, of contexts up to 8,192 that several blocks share."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    folder = make_random_model(
        tmp_path, vocab_size=4096, max_position_embeddings=8192, **sizes, **heads
    )
    torch.manual_seed(5)
    prompts = [torch.randint(10, 4000, (n,)).tolist() for n in (100, 1022, 3000, 5000, 8180)]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=8)

    def bits(wanted: list[list[int]], **options: Any) -> list[Any]:
        options = {"dtype": "bfloat16", **POOL, **options}
        with LLM(str(folder), device="cuda", skip_tokenizer_init=True, **options) as llm:
            prompts = [{"prompt_token_ids": each} for each in wanted]
            outputs = llm.generate(prompts, params, use_tqdm=False)
        return [
            [{t: p.logprob for t, p in place.items()} for place in output.outputs[0].logprobs or ()]
            for output in outputs
        ]

    together = bits(prompts, batch_invariant=True)
    assert [len(each) for each in together] == [8] * 5
    for way in ({"max_num_batched_tokens": 700}, {"enforce_eager": True}, {"max_num_seqs": 2}):
        assert bits(prompts, batch_invariant=True, **way) == together, way
    assert [bits([each], batch_invariant=True)[0] for each in prompts[1:]] == together[1:]
    # Else this proves nothing.
    assert [bits([each])[0] for each in prompts[1:]] != bits(prompts)[1:]
