"""What ``octavo plan`` says of memory, against what an engine then takes of a CUDA device."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.execution.memory_budget import Budget, budget_of
from octavo.frontend.options import read_options
from octavo_registry import PluginHost

pytestmark = pytest.mark.gpu

ALL = {
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "hidden_act": "silu",
}
EXPERTS = {"moe_intermediate_size": 768, "num_experts_per_tok": 8, "norm_topk_prob": True}
WIDE = {
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
}
# Gemma's many tokens make drawing the widest part of a step, the others' layers are that.
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "head_dim": 128,
    },
    "Qwen3MoeForCausalLM": {
        "model_type": "qwen3_moe",
        "vocab_size": 151_936,
        "num_experts": 32,
        **EXPERTS,
    },
    "GptOssForCausalLM": {
        "vocab_size": 128_000,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
    },
    "Gemma2ForCausalLM": {
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
    "OPTForCausalLM": {
        **WIDE,
        "vocab_size": 50_272,
        "ffn_dim": 16_384,
        "word_embed_proj_dim": 4096,
        "do_layer_norm_before": True,
        "activation_function": "relu",
    },
    "GPT2LMHeadModel": {
        **WIDE,
        "vocab_size": 50_257,
        "n_embd": 4096,
        "n_head": 64,
        "n_layer": 2,
        "n_inner": 16_384,
        "n_positions": 16_384,
    },
    "DeepseekV3ForCausalLM": {
        "vocab_size": 102_400,
        "num_attention_heads": 16,
        "n_routed_experts": 32,
        "n_shared_experts": 2,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        **EXPERTS,
    },
}
STEP_TOKENS = 8192  # max_num_batched_tokens by default
OPTIONS = {
    "device": "cuda",
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "kv_cache_memory_gib": 0.5,
    "max_model_len": STEP_TOKENS + 64,
    "enable_prefix_caching": False,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
MIXED = SamplingParams(
    seed=1, top_p=0.9, top_k=40, repetition_penalty=1.1, max_tokens=4, ignore_eos=True
)
WITH_LOGPROBS = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, ignore_eos=True)


@contextmanager
def engine(architecture: str, folder: Path, **options: Any) -> Iterator[tuple[LLM, Budget]]:
    """An engine, and what was planned."""
    config = {**ALL, **MODELS[architecture], "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    flat = {"model": str(folder), **OPTIONS, **options}
    budget = budget_of(read_options(flat, caller="test").config, PluginHost.discover())
    with LLM(**flat) as llm:
        yield llm, budget


def prompts(count: int, length: int) -> list[dict[str, list[int]]]:
    return [
        {"prompt_token_ids": [10 + (7 * i + 3 * k) % 900 for k in range(length)]}
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("architecture", "model_impl"),
    [
        *((name, "auto") for name in MODELS if name != "Gemma2ForCausalLM"),
        ("Qwen3MoeForCausalLM", "transformers"),
    ],
)
def test_memory_at_load_and_at_the_peak_of_the_largest_step_is_as_planned(
    architecture, model_impl, tmp_path
) -> None:
    """A step is filled by one long prompt and by many short ones; the plan is for the worse."""
    before = torch.cuda.memory_allocated()
    options = {"enforce_eager": True, "max_num_seqs": 64, "model_impl": model_impl}
    with engine(architecture, tmp_path, **options) as (llm, budget):
        held = torch.cuda.memory_allocated()
        state = 4 * budget.max_num_seqs * budget.max_model_len
        planned = budget.weight_bytes + budget.cache_bytes + state
        assert held - before == pytest.approx(planned, rel=0.03)
        torch.cuda.reset_peak_memory_stats()
        for step in (prompts(1, STEP_TOKENS), prompts(64, STEP_TOKENS // 64)):
            outputs = llm.generate(step, GREEDY, use_tqdm=False)
            assert {output.error for output in outputs} == {None}
        peak = torch.cuda.max_memory_allocated() - held
    assert 0.85 * (budget.workspace_bytes - state) <= peak <= budget.workspace_bytes - state


def test_drawing_and_logprobs_stay_within_the_plan(tmp_path) -> None:
    with engine("Gemma2ForCausalLM", tmp_path, enforce_eager=True) as (llm, budget):
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=3)
        params = [*[MIXED] * 1016, *[scored] * 8]
        llm.generate(prompts(1016, 4) + prompts(8, 500), params, use_tqdm=False)
        peak = torch.cuda.max_memory_allocated() - held
    assert budget.workspace_bytes / 2 < peak <= budget.workspace_bytes


def test_recorded_steps_stay_within_the_plan_and_close_leaves_nothing_behind(tmp_path) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    with engine("LlamaForCausalLM", tmp_path) as (llm, budget):
        for params in (GREEDY, MIXED, WITH_LOGPROBS):
            llm.generate(prompts(1, STEP_TOKENS) + prompts(1024, 8), params, use_tqdm=False)
        core = llm._front.client._core
        while core.use_idle_time():  # all sizes of all three kinds
            pass
        for params in (GREEDY, MIXED, WITH_LOGPROBS):
            llm.generate(prompts(1, STEP_TOKENS) + prompts(1024, 8), params, use_tqdm=False)
        launched = torch.cuda.max_memory_allocated() - before
        recorded = recorded_bytes()
    assert recorded > 2**28
    assert launched + recorded <= budget.weight_bytes + budget.cache_bytes + budget.workspace_bytes
    # What kernels keep is small, but a block of theirs may keep all that it was cut from.
    assert torch.cuda.memory_reserved() - reserved < 2**27, "close leaves memory behind"


def recorded_bytes() -> int:
    """Of the memory that recordings keep to themselves, though nothing may be in it."""
    segments = torch.cuda.memory_snapshot()
    return sum(each["total_size"] for each in segments if each["segment_pool_id"] != (0, 0))
