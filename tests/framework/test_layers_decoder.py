"""The last layer of a model, in steps that ask for some tokens' hidden states only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from octavo import LLM, LoRARequest, SamplingParams
from octavo.layers.decoder import SerialLayer
from octavo.layers.linear import RowParallelLinear
from octavo.layers.rotary import Angles
from octavo.testing.random_model import make_random_model
from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry.step import Step
from peft_adapters import save_adapter
from small_models import TEXT_MODELS, TOKENS, Checkpoint, cases_of

CASES = cases_of(*TEXT_MODELS, "Qwen2VLForConditionalGeneration", "Qwen3VLForConditionalGeneration")
FIRST = {architecture: (architecture, name) for architecture, name in reversed(CASES)}
OTHER_LAYERS = {"GPT2LMHeadModel", "OPTForCausalLM"}
"""Architectures whose last layer does all of what it is given."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPT = [*range(9, 109)]
SMALL: Mapping[str, Any] = {
    "num_blocks": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "num_threads": 1,
    "enable_prefix_caching": False,
}

Rows = dict[str, list[int]]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """By layer: of how many tokens each product with ``o_proj`` and ``down_proj`` was."""
    seen: Rows = defaultdict(list)

    def add_to(self: RowParallelLinear, residual_TO: Tensor, x_TI: Tensor) -> Tensor:
        assert len(residual_TO) == len(x_TI)
        seen[self.name.removeprefix("model.layers.")].append(len(x_TI))
        return untouched(self, residual_TO, x_TI)

    untouched = RowParallelLinear.add_to
    monkeypatch.setattr(RowParallelLinear, "add_to", add_to)
    return seen


def hidden_of(stages: Sequence[Any], axes: int, *, only: Sequence[Sequence[int]] | None) -> Tensor:
    """Hidden states after steps of 20 tokens, 20, and one each; of those in ``only``, by step."""
    specs = {name: spec for stage in stages for name, spec in stage.cache_specs().items()}
    builder = StepBuilder(specs, TorchAttention())
    row, found, start = builder.add_row(), [], 0
    for index, count in enumerate([20, 20, *[1] * (len(TOKENS) - 40)]):
        step = builder.step([(row, count)])
        step.positions_AT = step.positions_AT.expand(axes, -1)
        asked = range(count)
        if only is not None and index < len(only):
            asked = only[index]
            step.sample_tokens_R = torch.tensor(asked, dtype=torch.int32)
            step.only_sampled = True
        x_TD = stages[0].embed(torch.tensor(TOKENS[start : start + count]), None)
        for stage in stages:
            x_TD = stage.forward(x_TD, step)
        assert len(x_TD) == count
        found.append(x_TD[list(asked)])
        start += count
    return torch.cat(found)


def lengths_of(layer: SerialLayer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many tokens the layer does what comes behind its heads, filled as it runs."""
    lengths: list[int] = []

    def counted(do: Callable[..., Tensor | None], x_TD: Tensor, *heads_TE: Tensor) -> Tensor | None:
        lengths.append(len(x_TD))
        return do(x_TD, *heads_TE)

    for name in ("add_attention", "add_feed_forward"):
        monkeypatch.setattr(layer, name, partial(counted, getattr(layer, name)))
    return lengths


@pytest.mark.parametrize("architecture", FIRST)
@torch.inference_mode()
def test_what_is_asked_for_is_the_same_and_nothing_behind_the_heads_is_done_for_others(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = FIRST[architecture]
    model = Checkpoint(case, CASES[case], tmp_path).loaded()
    axes = 3 if "VL" in architecture else 1
    all_TD = hidden_of([model], axes, only=None)
    layers = [layer for layer in model.modules() if isinstance(layer, SerialLayer)]
    assert bool(layers) == (architecture not in OTHER_LAYERS)
    lengths = [lengths_of(layer, monkeypatch) for layer in layers]
    some_RD = hidden_of([model], axes, only=[[], [3, 19, 0]])
    torch.testing.assert_close(some_RD, all_TD[[23, 39, 20, *range(40, len(TOKENS))]])
    ones = [1] * 2 * (len(TOKENS) - 40)
    for before in lengths[:-1]:
        assert before == [20, 20, 20, 20, *ones]
    for last in lengths[-1:]:
        assert last == [3, 3, *ones]


@torch.inference_mode()
def test_only_the_last_pipeline_stage_leaves_tokens_out(tmp_path: Path, rows: Rows) -> None:
    case = FIRST["LlamaForCausalLM"]
    checkpoint = Checkpoint(case, CASES[case], tmp_path)
    stages = [checkpoint.loaded(last_layer=1), checkpoint.loaded(first_layer=1)]
    some_RD = hidden_of(stages, 1, only=[[], [19]])
    last = checkpoint.config["num_hidden_layers"] - 1
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert rows[f"0.{name}"][:3] == [20, 20, 1]
        assert rows[f"{last}.{name}"][:2] == [1, 1]
    whole_RD = hidden_of([checkpoint.loaded()], 1, only=None)[39:]
    torch.testing.assert_close(some_RD, whole_RD)


def test_a_prompt_in_chunks_passes_the_last_layer_with_the_token_that_draws(
    tmp_path: Path, rows: Rows
) -> None:
    folder = make_random_model(tmp_path, vocab_size=320)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with LLM(folder, **SMALL) as llm:
        rows.clear()
        (output,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            assert rows[f"0.{name}"][:5] == [64, 36, 1, 1, 1]
            assert rows[f"1.{name}"][:4] == [1, 1, 1, 1]
        rows.clear()
        params = replace(GREEDY, prompt_logprobs=0)
        (with_prompt,) = llm.generate([PROMPT], params, use_tqdm=False)
        assert rows["1.mlp.down_proj"][:2] == [64, 36]
    expected = greedy_of(reference)
    assert output.outputs[0].token_ids == with_prompt.outputs[0].token_ids == expected


def test_steps_of_which_more_than_half_is_asked_for_leave_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[int, int, bool]] = set()

    def forward(self: SerialLayer, x_TD: Tensor, angles: Angles, step: Step) -> Tensor:
        seen.add((len(x_TD), len(step.sample_tokens_R), step.only_sampled))
        return untouched(self, x_TD, angles, step)

    untouched = SerialLayer.forward
    monkeypatch.setattr(SerialLayer, "forward", forward)
    plain, with_prompt = GREEDY, replace(GREEDY, prompt_logprobs=0)
    with LLM(make_random_model(tmp_path, vocab_size=320), **SMALL) as llm:
        for others, last in ([[], [3]], [[3], [3]], [[3], [2]]):
            prompts = [PROMPT[:count] for count in (*others, *last)]
            params = [with_prompt] * len(others) + [plain]
            llm.generate(prompts, params, use_tqdm=False)
    assert {(3, 1, True), (6, 4, False), (5, 4, False), (1, 1, False), (2, 2, False)} <= seen


def test_where_an_adapter_is_active_all_tokens_pass(tmp_path: Path, rows: Rows) -> None:
    folder = make_random_model(tmp_path / "model", vocab_size=320)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = save_adapter(
        reference,
        tmp_path / "adapter",
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=32,
        target_modules=["o_proj", "gate_proj", "down_proj"],
    )
    request = LoRARequest("behind the heads", 1, str(tmp_path / "adapter"))
    of_adapter, of_base = greedy_of(adapted), greedy_of(reference)
    assert of_adapter != of_base
    with LLM(folder, **SMALL, enable_lora=True) as llm:
        for lora, lengths, expected in (
            (request, [64, 36, 1, 1], of_adapter),
            (None, [1, 1, 1, 1], of_base),
        ):
            rows.clear()
            (output,) = llm.generate([PROMPT], GREEDY, use_tqdm=False, lora_request=lora)
            assert output.outputs[0].token_ids == expected
            for name in ("1.self_attn.o_proj", "1.mlp.down_proj"):
                assert rows[name][:4] == lengths


def greedy_of(reference: Any) -> list[int]:
    """The tokens that Transformers draws after ``PROMPT``."""
    found: Tensor = reference.generate(
        input_ids=torch.tensor([PROMPT]),
        max_new_tokens=4,
        min_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
    )
    return found[0, len(PROMPT) :].tolist()
