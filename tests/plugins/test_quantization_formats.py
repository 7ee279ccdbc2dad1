"""Published formats of weights: what their configs say, and that their tools agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from octavo.config import ModelConfig
from octavo.errors import ConfigError, ModelError
from octavo.layers.formats import by_feature, unpacked
from octavo.layers.linear import ColumnParallelLinear
from octavo.layers.loading import load_weights
from octavo.model_folder import open_model
from octavo.testing.kit import run
from octavo_plugins.quantizations.mxfp4.quantization import Mxfp4Blocks
from octavo_registry import ModelSpec, Part, Shard, Site
from plan_equality import check_plan
from quantized_checkpoints import (
    mxfp4,
)
from quantized_models import (
    AWQ,
    FORMS,
    FP8,
    Pair,
    compressed,
    gptq_config,
    packing,
    scales,
)
from small_models import HOST

NAMES = {"awq", "compressed_tensors", "fp8", "gptq", "modelopt", "mxfp4"}


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


def test_what_modelopt_says_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    pair = Pair("LlamaForCausalLM", tmp_path, FORMS["modelopt"])
    pair.write()
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    apart = {"producer": {"name": "modelopt"}, "quantization": said}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(apart))
    folder = open_model(ModelConfig(model=str(tmp_path)), HOST)
    assert folder.quantization == "modelopt"
    assert folder.quantization_config == {"quant_method": "modelopt", **said}
    check_plan(tmp_path, HOST)
    said["kv_cache_quant_algo"] = "FP8"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(apart))
    with pytest.raises(ConfigError, match="kv_cache_quant_algo='FP8'"):
        check_plan(tmp_path, HOST)


def reversed_words(words: Tensor, bits: int, dim: int, order: Any = None) -> Tensor:
    """The first number of a word in its highest bits."""
    places = tuple(reversed(range(32 // bits)))
    return unpacked(words, bits, dim, places)


PLUGINS = "octavo_plugins.quantizations"
MISTAKES = {
    "order of gptq": ("awq", f"{PLUGINS}.awq.quantization.ORDER", tuple(range(8))),
    "highest bits first": ("gptq", f"{PLUGINS}.gptq.quantization.unpacked", reversed_words),
    "no g_idx": ("gptq", f"{PLUGINS}.gptq.quantization.GptqWords._groups", lambda *its: None),
    "nibbles swapped": (
        "compressed_tensors",
        f"{PLUGINS}.compressed_tensors.words.unpacked",
        reversed_words,
    ),
    "exponent off by one": ("mxfp4", f"{PLUGINS}.mxfp4.quantization.BIAS", 126),
    "no sign": ("mxfp4", f"{PLUGINS}.mxfp4.quantization.HALVES", (0, 1, 2, 3, 4, 6, 8, 12) * 2),
    "scales transposed": (
        "fp8",
        f"{PLUGINS}.scaled.by_feature",
        lambda scale, axes, site: by_feature(scale.flip(1), axes, site),
    ),
    "a scale of the first part": (
        "modelopt",
        f"{PLUGINS}.scaled.by_feature",
        lambda scale, axes, site: by_feature(scale[:1].expand_as(scale), axes, site),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_kit_notices_what_is_read_wrongly(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target, wrong = MISTAKES[mistake]
    monkeypatch.setattr(target, wrong)
    report = run(HOST, f"quantizations_{name}")
    failed = [check.name for check in report.checks if not check.passed]
    assert any("weights" in each for each in failed), report.as_text()
