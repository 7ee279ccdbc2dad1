"""Adapters that PEFT has saved, in one batch, against PEFT's own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, LoRARequest, SamplingParams
from peft_adapters import save_adapter
from small_models import Checkpoint, cases_of

TARGETS = {
    "LlamaForCausalLM": [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    ],
    "GPT2LMHeadModel": ["c_attn", "c_proj", "c_fc"],
    "Phi3ForCausalLM": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "DeepseekV2ForCausalLM": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    "DeepseekV3ForCausalLM": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
}  # fmt: skip
NEAR = 1e-3
"""By so much another token may be likelier in PEFT's float32 sums."""


def behind(model: Any, prompt: list[int], tokens: list[int]) -> float:
    """How far the worst of the tokens is from being the likeliest to the model."""
    with torch.inference_mode():
        logits_TV = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    chosen_T = logits_TV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return (logits_TV.amax(1) - chosen_T).max().item()


@pytest.mark.parametrize("architecture", TARGETS)
def test_adapters_of_several_ranks_and_none_are_pefts_own(
    architecture: str, tmp_path: Path
) -> None:
    targets = TARGETS[architecture]
    settings: dict[str, dict[str, Any]] = {
        "small": {"r": 4},
        "rslora": {"r": 33, "lora_alpha": 3, "use_rslora": True},
        "patterns": {
            "r": 64, "lora_alpha": 16,
            "rank_pattern": {targets[0]: 128}, "alpha_pattern": {targets[-1]: 2},
        },
    }  # fmt: skip
    case, variant = next(iter(cases_of(architecture).items()))
    base: Any = Checkpoint(case, variant, tmp_path / "model").reference.module
    models = {"": base}
    for name, each in settings.items():
        models[name] = save_adapter(base, tmp_path / name, target_modules=targets, **each)
    names = [*models] * 2
    prompts = [list(range(5 + number, 25 + 2 * number)) for number in range(len(names))]
    options = {"dtype": "float32", "skip_tokenizer_init": True, "num_blocks": 64}
    with LLM(
        str(tmp_path / "model"), enable_lora=True, lora_pool_rank=256, max_model_len=128, **options
    ) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False),
            lora_request=[
                LoRARequest(name, lora_path=str(tmp_path / name)) if name else None
                for name in names
            ],
            use_tqdm=False,
        )
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    for name, prompt, answer in zip(names, prompts, answers, strict=True):
        assert behind(models[name], prompt, answer) < NEAR, name
    others = names[1:] + names[:1]
    swapped = [behind(models[n], p, a) for n, p, a in zip(others, prompts, answers, strict=True)]
    assert min(swapped) > 100 * NEAR
