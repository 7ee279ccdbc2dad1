"""Prompts with media against a reference, in every way in which an engine may run them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from octavo import LLM, LoRARequest, SamplingParams
from octavo_registry import PluginHost
from plan_equality import check_plan

NUM_TOKENS = 12
BLOCK = {"cpu": 4, "cuda": 8}
"""The least of which some attention backend of the device makes a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaCase:
    """A prompt, and the tokens with which the reference goes on from it greedily."""

    token_ids: list[int]
    """With one placeholder for each item, as a user or a chat template writes them."""
    media: dict[str, list[Any]] = field(default_factory=dict)
    expected: list[int]
    adapter: str = ""
    """Path of the one that the prompt is for; empty: none."""


def randomize(model: torch.nn.Module, scale: float = 0.15) -> None:
    """Weights large enough that media and positions decide the tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, scale)


def greedy(model: Any, expanded_ids: list[int], **inputs: Any) -> list[int]:
    """The reference's own tokens behind a prompt whose placeholders are expanded."""
    ids_BT = torch.tensor([expanded_ids])
    output_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
        **inputs,
    )
    tokens: list[int] = output_BT[0, len(expanded_ids) :].tolist()
    return tokens


@torch.no_grad()
def greedy_from_rows(
    language: Any, token_ids: list[int], mark: int, rows: Iterable[torch.Tensor]
) -> list[int]:
    """The same of a language model alone, with an item's rows in the place of each mark."""
    waiting = iter(rows)
    embedding = language.get_input_embeddings()
    pieces = [
        next(waiting) if token == mark else embedding(torch.tensor([token])) for token in token_ids
    ]
    tokens: list[int] = language.generate(
        inputs_embeds=torch.cat(pieces)[None],
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=None,
    )[0].tolist()
    return tokens


def run(folder: Path, cases: Sequence[MediaCase], passes: int = 2, **options: Any) -> list[Any]:
    """The outputs of the last of some passes over all cases in one batch."""
    prompts = [
        {"prompt_token_ids": case.token_ids, "multi_modal_data": case.media}
        if case.media
        else {"prompt_token_ids": case.token_ids}
        for case in cases
    ]
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False
    )
    adapters = [LoRARequest(c.adapter, lora_path=c.adapter) if c.adapter else None for c in cases]
    settings = {
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "num_threads": 1,
        "kv_cache_memory_gib": 0.01,
        "block_size": BLOCK[options.get("device", "cpu")],
        "engine_process": False,  # tests change its model
        **options,
    }
    with LLM(str(folder), **settings) as llm:
        for _ in range(passes):
            outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=adapters)
    return outputs


def which_keep(
    folder: Path, changed: Sequence[tuple[MediaCase, dict[str, list[Any]]]], **options: Any
) -> list[bool]:
    """Whether cases give the same tokens with these media in the place of theirs."""
    outputs = run(folder, [replace(case, media=media) for case, media in changed], **options)
    return [
        list(output.outputs[0].token_ids) == case.expected
        for output, (case, _) in zip(outputs, changed, strict=True)
    ]


def check_equal(
    folder: Path,
    cases: Sequence[MediaCase],
    *,
    most_rows: int,
    num_groups: int = 1,
    **settings: Any,
) -> None:
    """Every way gives the reference's tokens, and what was planned is loaded.

    ``most_rows`` are the rows of the largest item.
    ``num_groups`` are the cache groups that the model's layers make.
    """
    check_plan(folder, PluginHost.discover())
    outputs = run(folder, cases, **settings)
    lengths = [len(output.prompt_token_ids) + NUM_TOKENS for output in outputs]
    block = BLOCK[settings.get("device", "cpu")]
    pool = num_groups * (-(-max(lengths) * 6 // (5 * block)) + 2)
    ways: dict[str, dict[str, Any]] = {
        "chunks inside items": {"max_num_batched_tokens": 7, "enable_prefix_caching": False},
        "room for one item": {"media_cache_tokens": most_rows, "max_num_batched_tokens": 24},
        "preemption": {"num_blocks": pool, "max_model_len": max(lengths), "passes": 1},
    }
    for name, options in {"all at once, caches warm": {}, **ways}.items():
        many = [*cases] * (3 if name == "preemption" else 1)
        outputs = run(folder, many, **options, **settings) if options else outputs
        for number, (output, case) in enumerate(zip(outputs, many, strict=True)):
            found = output.outputs[0].token_ids
            assert list(found) == case.expected, f"{name}: case {number}"


def check_every_cut(folder: Path, case: MediaCase, **settings: Any) -> None:
    """Steps of any number of tokens give the reference's: each place in the prompt is cut once."""
    num_tokens = len(run(folder, [case], passes=1, **settings)[0].prompt_token_ids)
    assert num_tokens > len(case.token_ids), "no item takes several tokens"
    for budget in range(1, num_tokens + 1):
        steps = {"max_num_batched_tokens": budget, "max_num_seqs": 1}
        (output,) = run(folder, [case], passes=1, **steps, **settings)
        assert list(output.outputs[0].token_ids) == case.expected, f"steps of {budget} tokens"
