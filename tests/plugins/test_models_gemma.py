"""Gemma 2 and 3 against Transformers: whole, in ranks and in stages, and from older files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.errors import ModelError
from octavo.testing.variants import Variant
from small_models import (
    Case,
    Checkpoint,
    assert_parts_equal_transformers,
    assert_windows_give_blocks_back,
    cases_of,
    run_stages,
)

VARIANTS = cases_of("Gemma2ForCausalLM", "Gemma3ForCausalLM")
GEMMA2: Case = ("Gemma2ForCausalLM", "soft caps and a window on every other layer")
GEMMA3: Case = ("Gemma3ForCausalLM", "norms of heads and two sets of angles")

each_variant = pytest.mark.parametrize("case", VARIANTS, ids=", ".join)


@each_variant
def test_stages_and_ranks_equal_the_whole_of_transformers(case: Case, tmp_path: Path) -> None:
    assert_parts_equal_transformers(case, VARIANTS[case], tmp_path)


def test_gemma2_without_layer_types_has_a_window_on_every_other_layer(tmp_path: Path) -> None:
    checkpoint = Checkpoint(GEMMA2, VARIANTS[GEMMA2], tmp_path)
    for name in ("layer_types", "tie_word_embeddings", "hidden_activation"):
        del checkpoint.config[name]  # as published files leave them out
    model = checkpoint.loaded()
    assert [spec.window for spec in model.cache_specs().values()] == [20, None, 20]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    checkpoint.check(run_stages([model]))


def test_gemma3_reads_the_two_thetas_of_older_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(GEMMA3, VARIANTS[GEMMA3], tmp_path)
    for name in ("layer_types", "rope_parameters"):
        del checkpoint.config[name]
    checkpoint.config |= {
        "sliding_window_pattern": 3,
        "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }
    checkpoint.check(run_stages([checkpoint.loaded()]))


@pytest.mark.parametrize("case", [GEMMA2, GEMMA3], ids=lambda case: case[0])
def test_embeddings_are_scaled_by_a_factor_of_the_models_precision(
    case: Case, tmp_path: Path
) -> None:
    variant = Variant(config={**VARIANTS[case].config, "hidden_size": 72})
    model = Checkpoint(case, variant, tmp_path).loaded(dtype=torch.bfloat16)
    tokens_T = torch.tensor([5, 3])
    scaled_TD = model.model.embed_tokens.weight[tokens_T] * torch.tensor(72**0.5).bfloat16()
    assert torch.equal(model.embed(tokens_T, None), scaled_TD)


@pytest.mark.parametrize("case", [GEMMA2, GEMMA3], ids=lambda case: case[0])
def test_attention_that_sees_what_comes_later_is_refused(case: Case, tmp_path: Path) -> None:
    checkpoint = Checkpoint(case, VARIANTS[case], tmp_path)
    checkpoint.config["use_bidirectional_attention"] = True
    with pytest.raises(ModelError, match="use_bidirectional_attention in config"):
        checkpoint.model()


@pytest.mark.parametrize("case", [GEMMA2, GEMMA3], ids=lambda case: case[0])
def test_layers_with_a_window_give_back_the_blocks_behind_it(case: Case, tmp_path: Path) -> None:
    """Without that, 15 blocks in each of three layers would be 45."""
    assert_windows_give_blocks_back(case, VARIANTS[case], tmp_path, num_blocks=30)


def test_rope_parameters_that_are_not_by_kind_of_layer_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(GEMMA3, VARIANTS[GEMMA3], tmp_path)
    checkpoint.config["rope_parameters"]["rope_theta"] = 5.0
    with pytest.raises(ModelError, match="are full_attention, sliding_attention, rope_theta"):
        checkpoint.model()
