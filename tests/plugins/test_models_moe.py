"""Architectures with experts against Transformers: whole, in ranks and in stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ModelError
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import MoE
from small_models import (
    Case,
    Checkpoint,
    assert_parts_equal_transformers,
    assert_windows_give_blocks_back,
    cases_of,
    run_stages,
)

VARIANTS = cases_of("MixtralForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM")
GPT_OSS: Case = next(case for case in VARIANTS if case[0] == "GptOssForCausalLM")
MIXTRAL: Case = ("MixtralForCausalLM", "three of eight experts and a window")
QWEN3: Case = ("Qwen3MoeForCausalLM", "dense layers among them, a window")

each_variant = pytest.mark.parametrize("case", VARIANTS, ids=", ".join)


@each_variant
def test_stages_and_ranks_equal_the_whole_of_transformers(case: Case, tmp_path: Path) -> None:
    assert_parts_equal_transformers(case, VARIANTS[case], tmp_path)


def test_qwen3_has_experts_on_the_layers_that_its_config_says(tmp_path: Path) -> None:
    layers = Checkpoint(QWEN3, VARIANTS[QWEN3], tmp_path).model().model.layers.values()
    kinds = [type(layer.mlp) for layer in layers]
    assert kinds == [GatedMLP, MoE, GatedMLP, GatedMLP, GatedMLP]  # 3 is among mlp_only_layers


def test_qwen3_counts_experts_by_either_name(tmp_path: Path) -> None:
    checkpoint = Checkpoint(QWEN3, VARIANTS[QWEN3], tmp_path)
    checkpoint.config["num_experts"] = checkpoint.config.pop("num_local_experts")
    checkpoint.check(run_stages([checkpoint.loaded()]))


def test_gpt_oss_without_layer_types_has_a_window_on_every_other_layer(tmp_path: Path) -> None:
    checkpoint = Checkpoint(GPT_OSS, VARIANTS[GPT_OSS], tmp_path)
    del checkpoint.config["layer_types"]
    specs = checkpoint.model().cache_specs().values()
    assert [spec.window for spec in specs] == [20, None, 20]
    checkpoint.check(run_stages([checkpoint.loaded()]))


def test_gpt_oss_with_another_gate_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(GPT_OSS, VARIANTS[GPT_OSS], tmp_path)
    checkpoint.config["swiglu_limit"] = 9.0
    with pytest.raises(ModelError, match=r"swiglu_limit=9\.0 in config\.json"):
        checkpoint.model()


@pytest.mark.parametrize(
    ("case", "num_blocks"),
    [(GPT_OSS, 30), (MIXTRAL, 10), (QWEN3, 10)],
    ids=lambda it: it[0] if isinstance(it, tuple) else "",
)
def test_layers_with_a_window_give_back_the_blocks_behind_it(
    case: Case, num_blocks: int, tmp_path: Path
) -> None:
    """Without that, 15 blocks each in three layers of gpt-oss would be 45, and 15 in the others."""
    assert_windows_give_blocks_back(case, VARIANTS[case], tmp_path, num_blocks=num_blocks)
