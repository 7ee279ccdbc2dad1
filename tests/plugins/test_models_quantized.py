"""Whole models whose weights a quantization stores, against the same with what these stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from int8_weights import Int8, Int8Experts, store, stored
from octavo.adapters.packed import pack
from octavo.errors import ModelError
from octavo.layers.adapted import AdapterRows, AdapterSpans
from octavo.steps.loads import AdapterLoad, Span
from octavo.testing.adapters import random_adapter
from octavo.weights.load import finish_layers
from small_models import TOKENS, Case, Checkpoint, cases_of, run_ranks, run_stages

MODELS = (
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
)
VARIANTS = cases_of(*MODELS)
PLAIN = ("norm", "embed_tokens", "lm_head", ".gate", ".router", "layernorm")
"""Ends of names of modules that stay as they are."""
STACKS = (".gate_up_proj", ".down_proj")

each_variant = pytest.mark.parametrize("case", VARIANTS, ids=", ".join)


def first_of(architecture: str) -> Case:
    """Its first variant."""
    return next(case for case in VARIANTS if case[0] == architecture)


class Pair:
    """A checkpoint of int8, and one with the weights that it stands for."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.plain = Checkpoint(case, VARIANTS[case], folder)
        self.quantized = Checkpoint(case, VARIANTS[case], folder)
        tensors = self.plain.tensors
        quantized, plain = stored(tensors, lambda name: not name.endswith(PLAIN))
        for name in [each for each in tensors if each.endswith(STACKS)]:  # gpt-oss, inputs first
            del quantized[name]
            codes, weight_XOI = store(tensors[name].mT)
            plain[name] = weight_XOI.mT.contiguous()
            quantized |= {f"{name}_{key}": its.contiguous() for key, its in codes.items()}
        self.plain.tensors, self.quantized.tensors = plain, quantized
        assert len(quantized) > len(plain)

    def expected(self, **changes: Any) -> Tensor:
        """The logits of plain weights."""
        return logits_of(self.plain, **changes)

    def found(self, **changes: Any) -> Tensor:
        """The logits of the quantized ones."""
        return logits_of(self.quantized, quantization=Int8({}, {}), **changes)


def logits_of(checkpoint: Checkpoint, **changes: Any) -> Tensor:
    model = checkpoint.loaded(**changes)
    finish_layers(model)
    return run_stages([model])


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@each_variant
def test_a_quantized_model_gives_what_its_weights_give_also_in_ranks(
    case: Case, tmp_path: Path
) -> None:
    pair = Pair(case, tmp_path)
    expected_TV = pair.expected()
    assert_near(pair.found(), expected_TV)
    for found_TV in run_ranks(
        2, lambda ranks: pair.found(tp_rank=ranks.rank, tp_size=2, collectives=ranks)
    ):
        assert_near(found_TV, expected_TV)


def test_what_is_compared_tells_one_scale_from_another(tmp_path: Path) -> None:
    changes = {
        "DeepseekV3ForCausalLM": "self_attn.kv_b_proj.scale",
        "MixtralForCausalLM": "experts.1.w2.scale",
        "GptOssForCausalLM": "down_proj_scale",
    }
    for architecture, name in changes.items():
        case = first_of(architecture)
        folder = tmp_path / case[0]
        folder.mkdir()
        pair = Pair(case, folder)
        expected_TV = pair.expected()
        (changed, *_) = [each for each in pair.quantized.tensors if each.endswith(name)]
        pair.quantized.tensors[changed] *= 1.05
        with pytest.raises(AssertionError, match="not close"):
            assert_near(pair.found(), expected_TV)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_latent_attention_multiplies_is_plain_once_it_is_loaded(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    case = first_of("DeepseekV3ForCausalLM")
    pair = Pair(case, tmp_path)
    model = pair.quantized.loaded(quantization=Int8({}, {}), dtype=dtype)
    attention = model.model.layers["0"].self_attn
    assert attention.kv_b_stored.codes.dtype == torch.int8
    finish_layers(model)
    finish_layers(model)
    name = "model.layers.0.self_attn.kv_b_proj"
    assert {n for n, _ in attention.named_parameters() if "kv_b" in n} == {"kv_b_proj"}
    found_OL = attention.kv_b_proj.flatten(0, 1)
    assert torch.equal(found_OL, pair.plain.tensors[f"{name}.weight"].to(dtype))


def test_a_model_on_the_meta_device_has_the_bytes_that_stay(tmp_path: Path) -> None:
    case = first_of("DeepseekV3ForCausalLM")
    checkpoint = Pair(case, tmp_path).quantized
    sizes = []
    for device in ("cpu", "meta"):
        changes = {"quantization": Int8({}, {}), "device": torch.device(device)}
        model = checkpoint.model(**changes)
        finish_layers(model)
        sizes.append({name: (p.shape, p.dtype) for name, p in model.named_parameters()})
    assert sizes[0].keys() == sizes[1].keys()
    assert {name: its for name, its in sizes[0].items() if name.endswith(("codes", "kv_b_proj"))}
    assert all(sizes[0][name] == sizes[1][name] for name in sizes[0])


SPAN = Span(3, 5)


def adapted(checkpoint: Checkpoint, whole: Any, **changes: Any) -> Tensor:
    """The logits with one adapter for all tokens."""
    rows = AdapterRows(SPAN.first + SPAN.length + 2, SPAN.length)
    model = checkpoint.loaded(adapters=rows, **changes)
    finish_layers(model)
    rows.load(AdapterLoad(SPAN, pack(whole, "float32")))
    first, rank = (torch.full((len(TOKENS),), it, dtype=torch.int32) for it in SPAN)
    runs = AdapterSpans(first, rank, rows.sites)
    rows.begin(runs)
    rows.begin_logits(runs)
    return run_stages([model])


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
def test_adapters_add_to_quantized_weights_what_they_add_to_plain_ones(
    architecture: str, tmp_path: Path
) -> None:
    pair = Pair(first_of(architecture), tmp_path)
    rows = AdapterRows(1, 1)
    pair.plain.model(device=torch.device("meta"), adapters=rows)
    whole = random_adapter(pair.plain.reference, rows.linears, rank=SPAN.length, seed=0)
    expected_TV = adapted(pair.plain, whole)
    assert not torch.allclose(expected_TV, pair.expected(), atol=1e-2)
    assert_near(adapted(pair.quantized, whole, quantization=Int8({}, {})), expected_TV)


def test_what_is_ignored_stays_plain(tmp_path: Path) -> None:
    checkpoint = Pair(first_of("MixtralForCausalLM"), tmp_path).quantized
    model = checkpoint.model(quantization=Int8({}, {}))
    names = model.model.layers["0"].mlp.site.names
    model = checkpoint.model(quantization=Int8({"ignore": names}, {}))
    methods = [isinstance(layer.mlp.method, Int8Experts) for layer in model.model.layers.values()]
    assert methods == [False, *[True] * (len(methods) - 1)]
    with pytest.raises(ModelError, match=r"experts\.0\.w1\.codes.* fits no layer"):
        model.load(iter(checkpoint.tensors.items()))
