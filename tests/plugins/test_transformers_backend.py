from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from octavo import LLM, SamplingParams
from octavo.config.engine import ModelConfig
from octavo.errors import ConfigError, ModelError
from octavo.model_folder import open_model
from octavo.testing.model import check_variant, make_trial
from octavo.testing.modes import Trial, engine_config, in_a_batch, teacher_forced
from octavo.testing.variants import TINY, Variant
from octavo.weights.load import build_model, load_model
from octavo_plugins.models.transformers.checkpoint import fill
from octavo_plugins.models.transformers.conformance import VARIANTS
from octavo_plugins.models.transformers.model import TransformersModel
from octavo_registry import PluginHost
from octavo_registry.model import ModelSpec

LENGTH = 64


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


def trial_of(host: PluginHost, folder: Path, architecture: str, **config: Any) -> Trial:
    known = VARIANTS.get(architecture, Variant(architecture=architecture))
    variant = replace(
        known,
        config={**known.config, **config},
        reference=f"transformers:{architecture}",
    )
    return make_trial(host, "transformers", variant, folder)


def loaded(trial: Trial, **options: Any) -> TransformersModel:
    config = engine_config(trial.folder, **{**trial.options, **options}).model
    folder = open_model(config, trial.host)
    return load_model(folder, trial.host, config=config, device=torch.device("cpu"))


def spec_of(architecture: str, model_type: str, **config: Any) -> ModelSpec:
    return ModelSpec(
        architecture=architecture,
        config={"architectures": [architecture], "model_type": model_type, **config},
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=LENGTH,
    )


def test_at_least_fifteen_architectures_are_tried() -> None:
    assert len(VARIANTS) >= 15


@pytest.mark.slow
def test_an_architecture_passes_the_conformance_kit(host) -> None:
    """One with windows and experts: ways to run a model depend on no more than that."""
    architecture = "Dots1ForCausalLM"
    checks = check_variant(host, "transformers", architecture, VARIANTS[architecture])
    assert [f"{each.name}: {each.detail}" for each in checks if not each.passed] == []


@pytest.mark.parametrize("architecture", VARIANTS)
def test_logits_equal_those_of_transformers_whole_and_in_chunks(
    host, tmp_path, architecture
) -> None:
    trial = trial_of(host, tmp_path, architecture)
    trial = replace(trial, prompts=trial.prompts[3:17:3])
    for comparison in (teacher_forced(trial), in_a_batch(trial, max_num_batched_tokens=13)):
        assert comparison.passed, comparison.as_text()


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("BloomForCausalLM", "bloom"),
        ("MptForCausalLM", "mpt"),
        ("JambaForCausalLM", "jamba"),
        ("MambaForCausalLM", "mamba"),
    ],
)
def test_an_architecture_with_attention_of_its_own_is_refused_by_name(
    architecture, model_type
) -> None:
    with pytest.raises(
        ModelError, match=f"{architecture} cannot be run .* AttentionInterface; use a"
    ):
        TransformersModel(spec_of(architecture, model_type))


def test_an_architecture_is_run_once_its_class_calls_attention_as_others_do(host, tmp_path) -> None:
    """GPT-J's does since Transformers 5.24; with older ones it is refused."""
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256}
    trial = trial_of(host, tmp_path, "GPTJForCausalLM", model_type="gptj", **sizes)
    if transformers.GPTJForCausalLM.is_backend_compatible():
        comparison = in_a_batch(trial, max_num_batched_tokens=13)
        assert comparison.passed, comparison.as_text()
    else:
        with pytest.raises(ModelError, match="GPTJForCausalLM cannot be run"):
            loaded(trial)


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        ("ZayaForCausalLM", {}, "its tokens reach one another beside attention"),
        ("DiffLlamaForCausalLM", {}, "its 2 layers call attention 4 times, from 2 places"),
        ("RecurrentGemmaForCausalLM", {}, "its 2 layers call attention 0 times"),
        ("BertLMHeadModel", {}, "a mask that is not causal"),
        (
            "Llama4ForCausalLM",
            {"num_local_experts": 4, "head_dim": 16, "attention_chunk_size": 32},
            "a mask that is not causal with or without a window",
        ),
        (
            "SmolLM3ForCausalLM",
            {
                "rope_parameters": {
                    **{"rope_type": "longrope", "original_max_position_embeddings": 64},
                    **{"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_theta": 1e4},
                },
            },
            "depends on the positions of others.* a smaller max_model_len",
        ),
        ("CTRLLMHeadModel", {"n_layer": 2, "dff": 96}, "depend on more than hidden states"),
    ],
)
def test_what_would_go_wrong_in_a_packed_step_is_refused_at_load(
    host, tmp_path, architecture, config, reason
) -> None:
    with pytest.raises(
        ModelError, match=f"{architecture} cannot be run .*{reason}.*; use a plugin"
    ):
        loaded(trial_of(host, tmp_path, architecture, **config)).cache_specs()


def test_a_window_is_found_in_the_mask_that_a_layer_asks_for(host, tmp_path) -> None:
    specs = loaded(trial_of(host, tmp_path, "Cohere2ForCausalLM")).cache_specs()
    assert [spec.window for spec in specs.values()] == [20, None]
    assert list(specs) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_sizes_are_known_without_weights(host, tmp_path) -> None:
    trial = trial_of(host, tmp_path, "Dots1ForCausalLM")
    config = engine_config(tmp_path, **trial.options).model
    folder = open_model(config, host)
    model = build_model(folder, host, config=config, device=torch.device("meta"))
    assert model.cache_specs() == loaded(trial).cache_specs()


def test_the_trial_run_passes_in_16_bit_too(host, tmp_path) -> None:
    for architecture in ("OlmoeForCausalLM", "GPTNeoXForCausalLM"):
        for dtype in ("bfloat16", "float16"):
            folder = tmp_path / architecture / dtype
            folder.mkdir(parents=True)
            specs = loaded(trial_of(host, folder, architecture), dtype=dtype).cache_specs()
            assert {spec.dtype for spec in specs.values()} == {dtype}


def test_what_transformers_keeps_in_float32_stays_so(host, tmp_path) -> None:
    trial = trial_of(host, tmp_path, "Dots1ForCausalLM")
    model = loaded(trial, dtype="bfloat16")
    reference = transformers.Dots1ForCausalLM.from_pretrained(trial.folder, dtype=torch.bfloat16)
    wanted = {name: tensor.dtype for name, tensor in reference.state_dict().items()}
    assert {name: t.dtype for name, t in model.causal_lm.state_dict().items()} == wanted
    assert wanted["model.layers.1.mlp.gate.e_score_correction_bias"] == torch.float32
    assert wanted["model.layers.1.self_attn.q_proj.weight"] == torch.bfloat16
    model.cache_specs()


def test_what_it_cannot_promise_is_refused(host, tmp_path) -> None:
    trial = trial_of(host, tmp_path, "CohereForCausalLM")
    with pytest.raises(ModelError, match=r"CohereForCausalLM cannot be run .* batch_invariant"):
        loaded(trial, batch_invariant=True)


def test_a_config_that_transformers_refuses_is_an_error_that_names_it() -> None:
    spec = spec_of("CohereForCausalLM", "cohere", hidden_size="wide")
    with pytest.raises(ModelError, match=r"CohereConfig refuses config.json: .*hidden_size"):
        TransformersModel(spec)


def test_only_the_rows_that_are_asked_for_go_through_the_head(host, tmp_path) -> None:
    model = loaded(trial_of(host, tmp_path, "CohereForCausalLM"))
    model.cache_specs()
    seen: list[torch.Size] = []
    model.causal_lm.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    hidden_RD = torch.randn(3, TINY["hidden_size"])
    logits_RV = model.logits(hidden_RD)
    assert seen == [(1, 3, TINY["hidden_size"])]
    plain_RV = hidden_RD @ model.causal_lm.lm_head.weight.T
    torch.testing.assert_close(logits_RV, plain_RV * 0.25)  # Cohere's logit_scale


# Weights.


def olmoe(folder: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model with twelve experts, and the checkpoint that Transformers writes of it."""
    config = transformers.OlmoeConfig(
        **{**TINY, "num_experts": 12, "num_experts_per_tok": 3, "num_hidden_layers": 1}
    )
    model = transformers.OlmoeForCausalLM(config)
    model.save_pretrained(folder)
    return model, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, reverse=True)])
def test_experts_find_their_place_in_whichever_order_they_come(tmp_path, order) -> None:
    model, weights = olmoe(tmp_path)
    assert "model.layers.0.mlp.experts.10.up_proj.weight" in weights
    expected = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name in order(weights):
            tensor = weights[name].clone()
            yield name, tensor
            tensor.fill_(torch.nan)  # the stream uses its memory again

    assert fill(model, stream()) == set(model.state_dict())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.pop("model.layers.0.mlp.experts.3.up_proj.weight"), "are not all there"),
        (lambda w: w.update({"model.extra": torch.zeros(2)}), "'model.extra' .* fits no part of"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"takes shape \[64\], found"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, change, reason) -> None:
    model, weights = olmoe(tmp_path)
    change(weights)
    with pytest.raises(ModelError, match=reason):
        fill(model, weights.items())


def test_a_buffer_that_the_checkpoint_lacks_is_named() -> None:
    model = transformers.Dots1ForCausalLM(
        transformers.Dots1Config(
            **TINY,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
            first_k_dense_replace=1,
            n_shared_experts=1,
        )
    )
    buffer = "model.layers.1.mlp.gate.e_score_correction_bias"
    weights = {name: t for name, t in model.state_dict().items() if name != buffer}
    with pytest.raises(ModelError, match=f"lack {buffer}"):
        fill(model, weights.items())


def test_tied_weights_that_differ_are_an_error() -> None:
    model = transformers.CohereForCausalLM(transformers.CohereConfig(**TINY))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert "lm_head.weight" in weights
    fill(model, weights.items())
    weights["lm_head.weight"] += 1
    with pytest.raises(ModelError, match=r"'lm_head.weight' differs from what .* ties it to"):
        fill(model, weights.items())


# How it is chosen.


def write_llama(folder: Path, **config: Any) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).eval()
    nn.init.normal_(model.lm_head.weight)
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **config}))
    return model


@pytest.mark.parametrize(
    ("architecture", "model_impl", "implementation"),
    [
        ("LlamaForCausalLM", "auto", "LlamaForCausalLM"),
        ("LlamaForCausalLM", "octavo", "LlamaForCausalLM"),
        ("LlamaForCausalLM", "transformers", "transformers"),
        ("NanoChatForCausalLM", "auto", "transformers"),
    ],
)
def test_it_runs_what_no_plugin_has_or_what_it_is_asked_to(
    host, tmp_path, architecture, model_impl, implementation
) -> None:
    settings = {"architectures": [architecture], **TINY}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    folder = open_model(ModelConfig(model=str(tmp_path), model_impl=model_impl), host)
    assert (folder.architecture, folder.implementation) == (architecture, implementation)


@pytest.mark.parametrize(
    ("architecture", "model_impl", "error", "reason"),
    [
        ("NanoChatForCausalLM", "octavo", ModelError, "no plugin has the architecture 'NanoChat"),
        ("LamaForCausalLM", "auto", ModelError, "no plugin has the architecture 'LamaFor"),
        ("LlamaForCausalLM", "transformer", ConfigError, r"close: \['transformers'"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    host, tmp_path, architecture, model_impl, error, reason
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **TINY}))
    with pytest.raises(error, match=reason):
        open_model(ModelConfig(model=str(tmp_path), model_impl=model_impl), host)


def test_an_architecture_that_the_installed_transformers_lacks_is_named() -> None:
    with pytest.raises(ModelError, match="no causal language model TomorrowForCausalLM; update it"):
        TransformersModel(spec_of("TomorrowForCausalLM", "llama"))


HOMEMADE = """
from transformers import LlamaConfig, LlamaForCausalLM

class HomemadeConfig(LlamaConfig):
    model_type = "homemade"

class HomemadeForCausalLM(LlamaForCausalLM):
    config_class = HomemadeConfig
"""


@pytest.fixture
def homemade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, nn.Module]:
    """A folder with code of its own, and the model that its weights come from."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    folder = tmp_path / "homemade"
    folder.mkdir()
    (folder / "modeling_homemade.py").write_text(HOMEMADE)
    auto_map = {
        "AutoConfig": "modeling_homemade.HomemadeConfig",
        "AutoModelForCausalLM": "modeling_homemade.HomemadeForCausalLM",
    }
    model = write_llama(
        folder, architectures=["HomemadeForCausalLM"], model_type="homemade", auto_map=auto_map
    )
    return folder, model


def test_code_of_a_models_folder_runs_only_if_it_may(homemade) -> None:
    folder, reference = homemade
    options: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 64, "device": "cpu"}
    with pytest.raises(ModelError, match=r"HomemadeForCausalLM is code .*trust_remote_code=True"):
        LLM(str(folder), **options)
    prompt = [5, 9, 23, 40, 7]
    with LLM(str(folder), trust_remote_code=True, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params)
    tokens = list(output.outputs[0].token_ids)
    logits_TV = reference(torch.tensor([prompt + tokens])).logits[0]
    assert tokens == logits_TV[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_code_of_another_repository_is_refused(homemade) -> None:
    folder, _ = homemade
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"]["AutoModelForCausalLM"] = "someone/else--modeling.Model"
    spec = replace(
        spec_of("HomemadeForCausalLM", "homemade"),
        config=settings,
        folder=folder,
        trust_remote_code=True,
    )
    with pytest.raises(ModelError, match=r"'someone/else--modeling.Model', code of another"):
        TransformersModel(spec)
