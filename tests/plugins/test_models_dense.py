"""The dense architectures against Transformers: alone, in ranks and stages, and from old files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.errors import ModelError
from octavo.layers.rotary import RotaryEmbedding, rotary_frequencies
from octavo_plugins.models.qwen2.model import window_of_later
from small_models import Case, Checkpoint, cases_of, run_rank_models, run_stages

ARCHITECTURES = (
    "MistralForCausalLM",
    "MinistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "Olmo2ForCausalLM",
    "GraniteForCausalLM",
    "OPTForCausalLM",
    "GPT2LMHeadModel",
)
VARIANTS = cases_of(*ARCHITECTURES)
FIRST = {case[0]: case for case in reversed(VARIANTS)}

each_architecture = pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
each_variant = pytest.mark.parametrize("case", VARIANTS, ids=", ".join)


def checkpoint_of(case: Case, folder: Path) -> Checkpoint:
    return Checkpoint(case, VARIANTS[case], folder)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@each_variant
def test_two_pipeline_stages_equal_transformers(case: Case, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(case, tmp_path)
    stages = [checkpoint.loaded(last_layer=1), checkpoint.loaded(first_layer=1)]
    assert len(stages[0].cache_specs()) == 1
    checkpoint.check(run_stages(stages))


@pytest.mark.parametrize("tp_size", [2, 4])
@each_variant
def test_tensor_parallel_ranks_equal_transformers(case: Case, tp_size: int, tmp_path: Path) -> None:
    """Most have two key/value heads, which four ranks share."""
    checkpoint = checkpoint_of(case, tmp_path)
    found = run_rank_models(checkpoint, tp_size)
    assert len(found) == tp_size
    for logits_TV in found:
        checkpoint.check(logits_TV)


@each_architecture
def test_every_layer_is_addressed_by_its_path_in_the_model(case: Case, tmp_path: Path) -> None:
    model = checkpoint_of(case, tmp_path).model()
    named = {name: module.name for name, module in model.named_modules() if hasattr(module, "name")}
    assert named == {name: name for name in named}
    assert len(named) > 10


@each_architecture
def test_a_tensor_that_fits_nothing_is_refused(case: Case, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(case, tmp_path)
    checkpoint.tensors["model.layers.0.extra.weight"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"extra\.weight' of shape \[3\] fits no layer"):
        checkpoint.loaded()


def test_gpt2_loads_files_of_the_model_without_a_head_and_old_masks(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(FIRST["GPT2LMHeadModel"], tmp_path)
    mask = torch.ones(1, 1, 4, 4)
    checkpoint.tensors = {
        **{name.removeprefix("transformer."): it for name, it in checkpoint.tensors.items()},
        "h.0.attn.bias": mask,
        "h.1.attn.masked_bias": mask,
    }
    checkpoint.check(run_stages([checkpoint.loaded()]))


def test_opt_loads_files_of_the_model_without_a_head(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(FIRST["OPTForCausalLM"], tmp_path)
    checkpoint.tensors = {
        name.removeprefix("model."): tensor for name, tensor in checkpoint.tensors.items()
    }
    checkpoint.check(run_stages([checkpoint.loaded()]))


def test_tied_embeddings_are_one_parameter_and_a_stored_head_is_left(tmp_path: Path) -> None:
    for case, embedding in (
        (FIRST["OPTForCausalLM"], "model.decoder.embed_tokens.weight"),
        (FIRST["GPT2LMHeadModel"], "transformer.wte.weight"),
    ):
        checkpoint = checkpoint_of(case, tmp_path)
        del checkpoint.config["tie_word_embeddings"]  # tied is what Transformers takes
        checkpoint.tensors["lm_head.weight"] = torch.zeros(160, 64)
        model = checkpoint.loaded()
        assert model.lm_head.weight is model.get_parameter(embedding)
        checkpoint.check(run_stages([model]))


def test_without_layer_types_the_later_layers_of_qwen_have_the_window() -> None:
    config = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    assert [window_of_later(config, index) for index in range(4)] == [None, None, 9, 9]
    assert window_of_later({**config, "use_sliding_window": False}, 3) is None
    assert window_of_later({"sliding_window": 9, "max_window_layers": 2}, 3) is None


def test_a_window_that_config_json_leaves_out_is_that_of_transformers(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(FIRST["MistralForCausalLM"], tmp_path)
    del checkpoint.config["sliding_window"]
    assert {spec.window for spec in checkpoint.model().cache_specs().values()} == {4096}


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention"),
        (
            "GPT2LMHeadModel",
            {"activation_function": "spiral"},
            "activation_function='spiral' of transformer.h.0.mlp",
        ),
        (
            "OPTForCausalLM",
            {"activation_function": "spiral"},
            "activation_function='spiral' of model.decoder.layers.0",
        ),
    ],
)
def test_config_values_that_would_change_the_result_are_refused(
    architecture: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(FIRST[architecture], tmp_path)
    checkpoint.config |= change
    with pytest.raises(ModelError, match=message):
        checkpoint.model()


LONG_ROPE = {
    "rope_theta": 100.0,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]},
}


def test_the_length_allowed_decides_which_factors_of_long_rope_are_used() -> None:
    plain_F, _ = rotary_frequencies({"rope_theta": 100.0}, 4, 16)
    short_F, magnitude = rotary_frequencies(LONG_ROPE, 4, 16)
    long_F, _ = rotary_frequencies(LONG_ROPE, 4, 17)
    torch.testing.assert_close(plain_F / short_F, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(plain_F / long_F, torch.tensor([3.0, 4.0]))
    assert magnitude == pytest.approx(1.5**0.5)  # 1 + log(64 / 16) / log(16)


def test_factors_for_long_sequences_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rotary_frequencies(LONG_ROPE, 4, 16)
    assert caplog.messages == []
    rotary_frequencies(LONG_ROPE, 4, 17)
    assert "set max_model_len=16" in caplog.text


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_long_rope_is_known_by_the_names_it_had(name: str) -> None:
    old = {**LONG_ROPE, "rope_scaling": {**LONG_ROPE["rope_scaling"], "type": name}}
    expected_F, magnitude = rotary_frequencies(LONG_ROPE, 4, 16)
    found_F, found_magnitude = rotary_frequencies(old, 4, 16)
    assert torch.equal(found_F, expected_F)
    assert found_magnitude == magnitude


def test_a_list_of_factors_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="needs 'short_factor', a list of 4 numbers"):
        rotary_frequencies(LONG_ROPE, 8, 16)


def test_phi_turns_a_part_of_each_head_by_either_name_in_config_json(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(FIRST["Phi3ForCausalLM"], tmp_path)
    for entries in (
        {"rope_parameters": None, "partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ):
        checkpoint.config |= entries
        (rotary,) = (m for m in checkpoint.model().modules() if isinstance(m, RotaryEmbedding))
        cos_TF, _ = rotary(torch.arange(3))
        assert cos_TF.shape == (3, 4)  # half of 16 entries, in pairs
