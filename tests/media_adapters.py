"""Adapters of the language model behind a tower, against the same with PEFT's merged weights."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoModelForImageTextToText

from media_equality import MediaCase, run
from octavo.testing.adapters import untied
from peft_adapters import save_adapter

LANGUAGE = (
    r"(?!.*(vision|visual|audio|tower|projector|embed_positions|\.gate$))"
    r".*(self_attn\.\w+_proj|mlp\.\w+_proj|embed_tokens|lm_head)"
)
"""All that may be adapted, in the names of any version."""


def check_adapted(
    folder: Path,
    cases: Sequence[MediaCase],
    scratch: Path,
    load: Callable[[Path], Any] = AutoModelForImageTextToText.from_pretrained,
    save: Callable[[Any, Path], None] = lambda module, folder: module.save_pretrained(folder),
    **settings: Any,
) -> None:
    """Cases with an adapter and without, in chunks inside items, and from a warm prefix cache."""
    # Merging into a tied weight would change both ends; PEFT's adapters are of one.
    module: Any = untied(load(folder))
    module.config.tie_word_embeddings = False
    module.config.get_text_config().tie_word_embeddings = False
    adapter, merged = scratch / "adapter", scratch / "merged"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = save_adapter(
            module, adapter, r=4, lora_alpha=8, target_modules=LANGUAGE, **with_experts(module)
        )
        shutil.copytree(folder, merged)
        save(peft.merge_and_unload(), merged)
    outputs = run(merged, cases, passes=1, **settings)
    adapted = [
        replace(case, expected=list(output.outputs[0].token_ids), adapter=str(adapter))
        for case, output in zip(cases, outputs, strict=True)
    ]
    assert all(new.expected != old.expected for new, old in zip(adapted, cases, strict=True))
    mixed = [*adapted, *cases]
    for options in {"passes": 2}, {"max_num_batched_tokens": 7, "passes": 1}:
        outputs = run(folder, mixed, enable_lora=True, lora_experts=True, **options, **settings)
        for number, (output, case) in enumerate(zip(outputs, mixed, strict=True)):
            assert list(output.outputs[0].token_ids) == case.expected, number


def with_experts(module: nn.Module) -> dict[str, Any]:
    """PEFT's settings for their parameters, where there are some."""
    names = ["experts.gate_up_proj", "experts.down_proj"]
    found = any(name.endswith(names[0]) for name, _ in module.named_parameters())
    return {"target_parameters": names} if found else {}
