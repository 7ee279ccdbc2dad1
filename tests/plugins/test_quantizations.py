"""Published formats of weights: whole models, against those with what their tensors stand for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, ModelError
from octavo.layers.adapted import AdapterRows
from octavo.layers.linear import ColumnParallelLinear
from octavo.layers.loading import load_weights
from octavo.testing.kit import run
from octavo.weights.load import finish_layers
from octavo_plugins.quantizations.mxfp4.quantization import Mxfp4Blocks
from octavo_registry import ModelSpec, Part, Shard, Site
from plan_equality import check_plan
from quantized_checkpoints import (
    E4M3,
    Store,
    awq,
    fp8_blocks,
    fp8_tensor,
    gptq,
    mxfp4,
    packed,
    scaled,
    stored,
)
from small_models import HOST, Case, Checkpoint, cases_of, run_ranks, run_stages

NAMES = {"awq", "compressed_tensors", "fp8", "gptq", "modelopt", "mxfp4"}
MODELS = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM")
VARIANTS = cases_of(*MODELS)
FIRST: dict[str, Case] = {case[0]: case for case in reversed(VARIANTS)}


class Form(NamedTuple):
    """A checkpoint's quantization_config, and how it stores a linear."""

    config: dict[str, Any]
    store: Store
    unit: int = 1
    """Outputs and inputs that a rank must have whole."""


def compressed(form: str, weights: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group of all linears."""
    group = {"targets": ["Linear"], "weights": weights, **changes}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
        "quantization_status": "compressed",
    }


def packing(bits: int, size: int, **changes: Any) -> dict[str, Any]:
    """One that packs words."""
    strategy = {"strategy": "channel"} if size < 0 else {"strategy": "group", "group_size": size}
    return compressed("pack-quantized", {"num_bits": bits, "type": "int", **strategy, **changes})


def scales(form: str, kind: str, strategy: str, **changes: Any) -> dict[str, Any]:
    """One of 8 bits that are not packed."""
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True}
    sizes = {"group": {"group_size": 16}, "block": {"block_structure": [16, 16]}}
    return compressed(form, {**weights, **sizes.get(strategy, {})}, **changes)


def gptq_config(bits: int, size: int, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **changes}


FP8 = {"quant_method": "fp8"}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}
STATIC = {"input_activations": {"num_bits": 8, "type": "float", "dynamic": False}}
FORMS = {
    "fp8": Form({**FP8, "activation_scheme": "dynamic"}, fp8_tensor()),
    "fp8 static": Form({**FP8, "activation_scheme": "static"}, fp8_tensor(static=True)),
    "fp8 blocks": Form({**FP8, "weight_block_size": [16, 16], "fmt": "e4m3"}, fp8_blocks(16), 16),
    "awq": Form({**AWQ, "group_size": 8}, awq(8), 8),
    "awq, a scale an output": Form({**AWQ, "group_size": -1}, awq(-1), 8),
    "gptq": Form(gptq_config(4, 16), gptq(4, 16), 16),
    "gptq, a scale an output": Form(gptq_config(4, -1), gptq(4, -1), 8),
    "gptq of 8 bits": Form(gptq_config(8, 16), gptq(8, 16), 16),
    "gptq, inputs out of order": Form(
        gptq_config(4, 16, desc_act=True, sym=False), gptq(4, 16, desc_act=True), 8
    ),
    "gptq, second form": Form(
        gptq_config(4, 16, checkpoint_format="gptq_v2"), gptq(4, 16, form=2), 16
    ),
    "words": Form(packing(4, 16, symmetric=True), packed(4, 16, symmetric=True), 16),
    "words with zeros": Form(packing(4, 8, symmetric=False), packed(4, 8, symmetric=False), 8),
    "words of 8 bits": Form(packing(8, -1, symmetric=True), packed(8, -1, symmetric=True), 4),
    "words out of order": Form(
        packing(4, 16, symmetric=False, actorder="group"),
        packed(4, 16, symmetric=False, ordered=True),
        8,
    ),
    "float8 by output": Form(
        scales("float-quantized", "float", "channel", input_activations={"dynamic": True}),
        scaled(E4M3, "channel"),
    ),
    "float8 by tensor": Form(
        scales("float-quantized", "float", "tensor", **STATIC), scaled(E4M3, "tensor", static=True)
    ),
    "float8 by block": Form(scales("float-quantized", "float", "block"), scaled(E4M3, "block"), 16),
    "int8 by output": Form(
        scales("int-quantized", "int", "channel"), scaled(torch.int8, "channel")
    ),
    "int8 by group": Form(
        scales("naive-quantized", "int", "group"), scaled(torch.int8, "group"), 16
    ),
    "modelopt": Form(
        {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*norm*"]},
        fp8_tensor(static=True),
    ),
}


class Pair:
    """A checkpoint as it is stored, and one with the weights that it stands for."""

    def __init__(self, architecture: str, folder: Path, form: Form) -> None:
        case = FIRST[architecture]
        self.plain = Checkpoint(case, VARIANTS[case], folder)
        self.quantized = Checkpoint(case, VARIANTS[case], folder)
        self.config, self.folder = form.config, folder
        self.quantized.tensors, self.plain.tensors = stored(
            self.plain.tensors, form.store, lambda name: True
        )

    def expected(self) -> Tensor:
        """The logits of plain weights."""
        return logits_of(self.plain)

    def found(self, **changes: Any) -> Tensor:
        """The logits of the stored ones."""
        make = HOST.quantizations.make
        quantization = make(self.config["quant_method"], self.config, self.quantized.config)
        return logits_of(self.quantized, quantization=quantization, **changes)

    def write(self) -> None:
        """Let the folder have what is stored."""
        config = {**self.quantized.config, "quantization_config": self.config}
        (self.folder / "config.json").write_text(json.dumps(config))
        save_file(self.quantized.tensors, self.folder / "model.safetensors")


def logits_of(checkpoint: Checkpoint, **changes: Any) -> Tensor:
    model = checkpoint.loaded(**changes)
    finish_layers(model)
    return run_stages([model])


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_kit_proves_each_format(name: str) -> None:
    report = run(HOST, f"quantizations_{name}")
    assert report.passed, report.as_text()
    assert "multiplies experts by their weights" in report.as_text()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({**FP8, "weight_bloc_size": [128, 128]}, r"weight_bloc_size=\[128, 128\] .* is not known"),
        ({**FP8, "activation_scheme": "statik"}, "activation_scheme='statik' .* known: 'dynamic'"),
        ({**FP8, "fmt": "e5m2"}, "fmt='e5m2' in quantization_config cannot be read"),
        ({**FP8, "weight_block_size": 128}, "weight_block_size=128 .* must be two sizes"),
        ({**FP8, "ignored_layers": "lm_head"}, "ignored_layers .* must be a list of names"),
        ({}, "cannot be quantized while they load yet"),
        ({**AWQ, "version": "gemv"}, "version='gemv' .* known: 'gemm', 'GEMM'"),
        ({**AWQ, "bits": 8}, "bits=8 in quantization_config cannot be read; known: 4"),
        ({**AWQ, "group_size": 12}, "group_size=12 .* must be -1 or a multiple of 8"),
        (gptq_config(3, 128), "bits=3 .* known: 4, 8"),
        (gptq_config(4, 128, checkpoint_format="marlin"), "checkpoint_format='marlin'"),
        (gptq_config(4, 128, lm_head="yes"), "lm_head='yes'"),
        (gptq_config(4, 128, dynamic={"+:a": {"rank": 4}}), r"dynamic .* '\+:a': {'rank': 4}"),
        (packing(3, 32), "num_bits=3 in config_groups.group_0.weights"),
        (packing(4, 32, simetric=True), "simetric=True in config_groups.group_0.weights is not"),
        (scales("float-quantized", "float", "tensor", oops=1), "oops=1 in config_groups.group_0"),
        ({**packing(4, 32), "sparsity_config": {"format": "2:4"}}, "sparsity_config=.* cannot be"),
        ({**packing(4, 32), "config_groups": {}}, "config_groups={} .* must name groups"),
        ({**packing(4, 32), "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme="),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo='NVFP4' .* known: 'FP8'"),
        ({"quant_method": "mxfp4", "bits": 4}, "bits=4 in quantization_config is not known"),
    ],
)
def test_what_a_config_says_and_nobody_knows_is_refused(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        HOST.quantizations.make(config.get("quant_method", "fp8"), config, {})


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


def test_no_device_gets_slow_products_in_silence(tmp_path: Path) -> None:
    pair = Pair("LlamaForCausalLM", tmp_path, FORMS["fp8"])
    site = pair.plain.model().model.layers["0"].mlp.down_proj.site
    method = HOST.quantizations.make("fp8", pair.config, {}).method_of(site)
    device = torch.device("cuda")
    with pytest.raises(ModelError, match="run on the CPU only so far"):
        method.create(torch.nn.Module(), site, dtype=torch.float32, device=device)


def test_mxfp4_is_widened_as_transformers_does() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    its, meant_XOI = mxfp4(torch.randn(2, 6, 96))
    expected_XIO = convert_moe_packed_tensors(its["blocks"], its["scales"], dtype=torch.float32)
    assert torch.equal(meant_XOI, expected_XIO.mT)
    site = Site(
        name="up",
        kind="linear",
        inputs=Shard.whole(96),
        parts=(Part("up", Shard.whole(6)),),
    )
    one = {key: tensor[0] for key, tensor in its.items()}
    coded = Mxfp4Blocks().coded(one, site)
    assert torch.equal(coded.widened(slice(None)), meant_XOI[0])


def test_words_are_read_as_compressed_tensors_does_which_wrote_them() -> None:
    """The file is that of ``make_compressed_tensors_words``."""
    path = Path(__file__).parents[1] / "compressed_tensors_words.safetensors"
    with safe_open(path, framework="pt") as file:
        configs = json.loads(file.metadata()["configs"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert len(configs) == 12
    for form, group in configs.items():
        config = {**compressed("pack-quantized", {}), "config_groups": {"group_0": group}}
        quantization = HOST.quantizations.make("compressed-tensors", config, {})
        its = {
            name.replace(f"{form}/", "up."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{form}/")
        }
        expected_OI = its.pop("up.expected")
        spec = ModelSpec(
            architecture="Test",
            config={},
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_model_len=64,
            quantization=quantization,
        )
        outputs, inputs = expected_OI.shape
        layer = ColumnParallelLinear("up", inputs, {"up": outputs}, bias=False, spec=spec)
        load_weights(layer, its.items())
        layer.finish_weights()
        assert torch.equal(layer.method.dequantize(layer), expected_OI), form
