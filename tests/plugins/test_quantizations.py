"""Published formats of weights: whole models, against those with what their tensors stand for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from octavo import LLM, SamplingParams
from octavo.errors import ModelError
from octavo.layers.adapted import AdapterRows
from plan_equality import check_plan
from quantized_checkpoints import (
    mxfp4,
)
from quantized_models import (
    FIRST,
    FORMS,
    VARIANTS,
    Form,
    Pair,
    assert_near,
    logits_of,
)
from small_models import HOST, Checkpoint, run_ranks


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_model_gives_what_its_stored_weights_stand_for(
    form: Form, architecture: str, tmp_path: Path
) -> None:
    pair = Pair(architecture, tmp_path, form)
    expected_TV = pair.expected()
    assert_near(pair.found(), expected_TV)
    if form.unit == 1 or architecture == "LlamaForCausalLM":
        for found_TV in run_ranks(
            2, lambda ranks: pair.found(tp_rank=ranks.rank, tp_size=2, collectives=ranks)
        ):
            assert_near(found_TV, expected_TV)


@pytest.mark.parametrize("name", ["fp8 blocks", "gptq, inputs out of order", "words with zeros"])
def test_a_folder_is_loaded_and_planned_as_it_is_stored(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    Pair("DeepseekV3ForCausalLM", tmp_path, form).write()
    check_plan(tmp_path, HOST)
    check_plan(tmp_path, HOST, load_format="dummy")


def test_gpt_oss_in_mxfp4_gives_what_its_stacks_stand_for(tmp_path: Path) -> None:
    case = FIRST["GptOssForCausalLM"]
    plain, packed = (Checkpoint(case, VARIANTS[case], tmp_path) for _ in range(2))
    for name in [each for each in plain.tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        its, meant_XOI = mxfp4(plain.tensors[name].mT)
        plain.tensors[name] = meant_XOI.mT.contiguous()
        del packed.tensors[name]
        packed.tensors |= {f"{name}_{key}": its[key] for key in its}
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    quantization = HOST.quantizations.make("mxfp4", config, {})
    expected_TV = logits_of(plain)
    assert_near(logits_of(packed, quantization=quantization), expected_TV)

    def of_rank(ranks: Any) -> Tensor:
        changes = {"tp_rank": ranks.rank, "tp_size": 2, "collectives": ranks}
        return logits_of(packed, quantization=quantization, **changes)

    for found_TV in run_ranks(2, of_rank):
        assert_near(found_TV, expected_TV)


@pytest.mark.parametrize(
    ("ignored", "parts"),
    [
        (["model.layers.0.mlp"], {"gate_proj", "up_proj", "down_proj"}),
        (["re:.*layers.0.*mlp.*"], {"gate_proj", "up_proj", "down_proj"}),
        (["model.layers.0.mlp.*"], {"gate_proj", "up_proj", "down_proj"}),
        (["model.layers.0.self_attn.o_proj"], {"o_proj"}),
        (["mlp.gate", "lm_head"], set()),
    ],
)
def test_lists_leave_linears_plain_by_whole_words_and_patterns(
    ignored: list[str], parts: set[str], tmp_path: Path
) -> None:
    form = FORMS["fp8"]
    pair = Pair("LlamaForCausalLM", tmp_path, form)
    pair.config = {**form.config, "ignored_layers": ignored}
    for name in [each for each in pair.plain.tensors if each.endswith("proj.weight")]:
        if ".layers.0." in name and name.split(".")[-2] in parts:
            pair.quantized.tensors[name] = pair.plain.tensors[name]
            pair.quantized.tensors.pop(f"{name}_scale")
    assert_near(pair.found(), pair.expected())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
def test_any_linears_may_be_left_out_of_a_fused_product(
    architecture: str, seed: int, tmp_path: Path
) -> None:
    form = FORMS[("awq", "gptq, inputs out of order", "fp8 blocks", "fp8 static")[seed]]
    pair = Pair(architecture, tmp_path, form)
    linears = sorted({n.rpartition(".")[0] for n in pair.quantized.tensors if "self_attn" in n})
    linears = [name for name in linears if not name.endswith("norm")]
    plain = random.Random(seed).sample(linears, len(linears) // 2)
    key = "modules_to_not_convert" if "gptq" not in form.config.values() else "dynamic"
    pair.config = {**form.config, key: plain}
    if key == "dynamic":
        pair.config[key] = {f"-:{name}$": {} for name in plain}
    for name in plain:
        for each in [n for n in pair.quantized.tensors if n.startswith(f"{name}.")]:
            del pair.quantized.tensors[each]
        pair.quantized.tensors[f"{name}.weight"] = pair.plain.tensors[f"{name}.weight"]
    expected_TV = pair.expected()
    assert_near(pair.found(), expected_TV)
    if form.unit == 1:
        for found_TV in run_ranks(
            2, lambda ranks: pair.found(tp_rank=ranks.rank, tp_size=2, collectives=ranks)
        ):
            assert_near(found_TV, expected_TV)


@pytest.mark.parametrize("name", ["gptq", "words with zeros"])
def test_a_head_may_be_stored_so_and_has_adapters(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    pair = Pair("LlamaForCausalLM", tmp_path, form)
    tensors, meant_VD = form.store(pair.plain.tensors["lm_head.weight"])
    del pair.quantized.tensors["lm_head.weight"]
    pair.quantized.tensors |= {f"lm_head.{key}": its for key, its in tensors.items()}
    pair.plain.tensors["lm_head.weight"] = meant_VD
    pair.config = {**form.config, **({"lm_head": True} if name == "gptq" else {"ignore": []})}
    expected_TV = pair.expected()
    assert_near(pair.found(), expected_TV)
    assert_near(pair.found(adapters=AdapterRows(8, 8)), expected_TV)
    if name == "words with zeros":
        for found_TV in run_ranks(
            2, lambda ranks: pair.found(tp_rank=ranks.rank, tp_size=2, collectives=ranks)
        ):
            assert_near(found_TV, expected_TV)


def test_biases_of_zeros_that_gptq_writes_are_passed_over_and_others_refused(
    tmp_path: Path,
) -> None:
    pair = Pair("LlamaForCausalLM", tmp_path, FORMS["gptq"])
    tensors = pair.quantized.tensors
    for name in [each for each in tensors if each.endswith(".scales")]:
        tensors[name.replace("scales", "bias")] = torch.zeros(tensors[name].shape[1])
    expected_TV = pair.expected()
    assert_near(pair.found(), expected_TV)
    mixed = {f"-:.*layers.{i}.self_attn.q_proj": {} for i in range(9)}
    name = "model.layers.0.self_attn.k_proj.bias"
    tensors[name] += 0.1
    with pytest.raises(ModelError, match="bias' is not zero, and the model has nothing of"):
        pair.found()
    tensors[name] -= 0.1
    pair.config = {**pair.config, "dynamic": mixed}
    for name in [each for each in tensors if "self_attn.q_proj." in each]:
        if not name.endswith(".bias"):
            del tensors[name]
    plain = pair.plain.tensors
    tensors |= {name: plain[name] for name in plain if name.endswith("q_proj.weight")}
    assert_near(pair.found(), expected_TV)
    without = Pair("LlamaForCausalLM", tmp_path, FORMS["awq"])
    without.quantized.tensors["model.layers.0.self_attn.k_proj.bias"] = torch.zeros(32)
    with pytest.raises(ModelError, match=r"k_proj\.bias' of shape .* fits no layer"):
        without.found()


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"])
def test_biases_of_zeros_are_passed_over_at_experts_latent_weights_and_the_head(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantized_checkpoints.PLAIN", ("norm", "embed_tokens", ".gate"))
    pair = Pair(architecture, tmp_path, FORMS["gptq"])
    pair.config = {**pair.config, "lm_head": True}
    tensors = pair.quantized.tensors
    for name in [each for each in tensors if each.endswith(".scales")]:
        tensors[name.replace("scales", "bias")] = torch.zeros(tensors[name].shape[1])
    assert {"lm_head.bias", "model.layers.1.mlp.experts.2.down_proj.bias"} <= tensors.keys()
    assert_near(pair.found(), pair.expected())
    tensors["model.layers.1.mlp.experts.2.down_proj.bias"] += 0.1
    with pytest.raises(
        ModelError, match=r"down_proj\.bias' is not zero, and the model has nothing"
    ):
        pair.found()


def test_experts_in_different_forms_are_refused_by_their_names(tmp_path: Path) -> None:
    pair = Pair("Qwen3MoeForCausalLM", tmp_path, FORMS["fp8"])
    pair.config = {**pair.config, "ignored_layers": ["model.layers.1.mlp.experts.2.up_proj"]}
    with pytest.raises(ModelError, match=r"experts\.2\.up_proj and .*gate_proj are stored in diff"):
        pair.found()


def test_an_engine_makes_the_tokens_of_the_weights_that_are_stored(tmp_path: Path) -> None:
    tokens = []
    for kind in ("plain", "quantized"):
        folder = tmp_path / kind
        folder.mkdir()
        pair = Pair("DeepseekV3ForCausalLM", folder, FORMS["words with zeros"])
        if kind == "quantized":
            pair.write()
        else:
            save_file(pair.plain.tensors, folder / "model.safetensors")
        options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32"}
        with LLM(model=folder, device="cpu", kv_cache_memory_gib=0.01, **options) as llm:
            params = SamplingParams(max_tokens=12, temperature=0, detokenize=False)
            prompts = [{"prompt_token_ids": [5, 9, 11, 40]}, {"prompt_token_ids": [7, 8]}]
            outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([output.outputs[0].token_ids for output in outputs])
    assert tokens[0] == tokens[1]
    assert {len(its) for its in tokens[0]} == {12}
