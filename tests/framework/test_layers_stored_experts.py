"""Experts whose weights a quantization stores: filled from either kind of checkpoint, in ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from int8_weights import Int8, Int8Linear, store
from octavo.errors import ModelError, PluginError
from octavo.layers.adapted import AdapterRows
from octavo.layers.loading import load_weights
from octavo.layers.moe import ExpertTensors, MoE, Routing, StackedTensors
from octavo_registry import Axis, ExpertsParameter, ExpertsSite, ModelSpec, Site

EXPERTS, HIDDEN, FEATURES = 3, 8, 12
SIZES = {
    "gate_proj": (FEATURES, HIDDEN),
    "up_proj": (FEATURES, HIDDEN),
    "down_proj": (HIDDEN, FEATURES),
}


class OneRank:
    """Leaves each rank its part of the sum."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    all_gather = all_reduce


def layer_of(quantization: object, rank: int = 0, num_ranks: int = 1, **changes: Any) -> MoE:
    names = ("activation", "bias", "checkpoint")
    options = {name: changes.pop(name) for name in names if name in changes}
    spec = ModelSpec(
        **{
            "architecture": "Test",
            "config": {},
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "max_model_len": 64,
            "tp_rank": rank,
            "tp_size": num_ranks,
            "collectives": OneRank(),
            "quantization": quantization,
            **changes,
        }
    )
    routing = Routing(num_experts=EXPERTS, chosen=2)
    options = {"activation": "silu", **options}
    return MoE("mlp", HIDDEN, FEATURES, routing=routing, spec=spec, **options)


def one_by_one(*, bias: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint of experts one by one, and the same with the weights that it stands for."""
    quantized = {"mlp.gate.weight": torch.randn(EXPERTS, HIDDEN)}
    plain = dict(quantized)
    for expert, child in product(range(EXPERTS), SIZES):
        name = f"mlp.experts.{expert}.{child}"
        codes, plain[f"{name}.weight"] = store(torch.randn(SIZES[child]))
        quantized |= {f"{name}.{key}": tensor for key, tensor in codes.items()}
        if bias:
            plain[f"{name}.bias"] = torch.randn(SIZES[child][0])
            quantized[f"{name}.bias"] = plain[f"{name}.bias"]
    return quantized, plain


def stacks() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same of a checkpoint with stacks, whose plain weights stand inputs first."""
    quantized = {"mlp.gate.weight": torch.randn(EXPERTS, HIDDEN)}
    plain = dict(quantized)
    for child, shape in {**SIZES, "gate_up_proj": (2 * FEATURES, HIDDEN)}.items():
        if child in ("gate_proj", "up_proj"):
            continue
        name = f"mlp.experts.{child}"
        codes, weight_XOI = store(torch.randn(EXPERTS, *shape))
        plain[name] = weight_XOI.mT.contiguous()
        plain[f"{name}_bias"] = torch.randn(EXPERTS, shape[0])
        quantized[f"{name}_bias"] = plain[f"{name}_bias"]
        quantized |= {f"{name}_{key}": tensor for key, tensor in codes.items()}
    return quantized, plain


def sums(layers: list[MoE], tensors: dict[str, Tensor], x_TD: Tensor) -> Tensor:
    """What the ranks give together."""
    for layer in layers:
        loaded = load_weights(layer, tensors.items())
        assert loaded == {name for name, _ in layer.named_parameters()}
        layer.finish_weights()
    return sum(layer(x_TD) for layer in layers)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("layout", ["apart", "biased", "stacked", "by turns"])
def test_quantized_experts_give_what_their_weights_give(layout: str, num_ranks: int) -> None:
    options: dict[str, Any] = {"bias": layout != "apart"}
    if layout in ("apart", "biased"):
        quantized, plain = one_by_one(bias=options["bias"])
    else:
        quantized, plain = stacks()
        options["checkpoint"] = StackedTensors(transposed=True, interleaved=layout == "by turns")
    x_TD = torch.randn(7, HIDDEN)
    expected_TD = sums([layer_of(None, **options)], plain, x_TD)
    ranks = range(num_ranks)
    found_TD = sums(
        [layer_of(Int8({}, {}), r, num_ranks, **options) for r in ranks], quantized, x_TD
    )
    torch.testing.assert_close(found_TD, expected_TD)


@pytest.mark.parametrize("num_ranks", [2, 4, 5])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_ranks_features_are_padded_to_whole_groups(num_ranks: int, stacked: bool) -> None:
    """Of 12 features in groups of 4, two ranks have 8 and 4, four 4, 4, 4 and 0."""
    options: dict[str, Any] = {"bias": True}
    if stacked:
        options["checkpoint"] = StackedTensors(transposed=True, interleaved=True)
        quantized, plain = stacks()
    else:
        quantized, plain = one_by_one(bias=True)
    x_TD = torch.randn(7, HIDDEN)
    expected_TD = sums([layer_of(None, **options)], plain, x_TD)
    grouped = Int8({"unit": 4}, {})
    layers = [layer_of(grouped, rank, num_ranks, **options) for rank in range(num_ranks)]
    assert {layer.part.size for layer in layers} == {8 if num_ranks == 2 else 4}
    assert layers[-1].gate_up_codes.shape[1] == 2 * layers[-1].part.size
    torch.testing.assert_close(sums(layers, quantized, x_TD), expected_TD, atol=1e-4, rtol=1e-4)


def test_exceptions_are_asked_for_by_the_names_of_checkpoints() -> None:
    asked: list[Site | ExpertsSite] = []

    class Asking(Int8):
        def method_of(self, site: Site | ExpertsSite) -> Any:
            asked.append(site)
            return super().method_of(site)

    layer_of(Asking({}, {}), 1, 2)
    assert [(site.kind, site.name) for site in asked] == [
        ("experts", "mlp"),
        ("router", "mlp.gate"),
    ]
    assert asked[0].names[:4] == tuple(f"mlp.experts.{name}" for name in (
        "0.gate_proj", "0.up_proj", "0.down_proj", "1.gate_proj"
    ))  # fmt: skip
    assert asked[0].down.in_features == FEATURES
    layer_of(Asking({}, {}), checkpoint=StackedTensors())
    assert asked[2].names == ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
    ignored = layer_of(Int8({"ignore": asked[0].names}, {}), checkpoint=ExpertTensors())
    assert ignored.gate_up_proj.dtype == torch.float32


def odd(**changes: Any) -> Any:
    """A quantization whose experts' method is another's, but for something."""

    class Odd(Int8):
        def method_of(self, site: Site | ExpertsSite) -> Any:
            method = super().method_of(site)
            if isinstance(site, ExpertsSite):
                for name, value in changes.items():
                    setattr(method, name, value)
            return method

    return Odd({}, {})


def test_what_a_method_of_experts_says_must_be_so() -> None:
    class Linears(Int8):
        def method_of(self, site: Site | ExpertsSite) -> Any:
            return Int8Linear()

    with pytest.raises(PluginError, match=r"Linears gave Int8Linear for mlp, .* no ExpertsMethod"):
        layer_of(Linears({}, {}))

    def create(filled: object) -> Any:
        def create(layer: MoE, site: ExpertsSite, **like: Any) -> Any:
            layer.w = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * FEATURES, HIDDEN))
            layer.v = torch.nn.Parameter(torch.zeros(2 * FEATURES, HIDDEN))
            return filled

        return create

    out, into = Axis("out"), Axis("in")
    for filled, told in (
        ({"w": (out, into)}, "mlp.w is filled by .*, no ExpertsParameter"),
        ({"v": ExpertsParameter("gate_up", "v", (out,))}, "mlp.v is .* needs an axis of 3 experts"),
        ({"w": ExpertsParameter("down", "w", (out, into))}, "mlp.w has 24 entries .*, and 8 are"),
    ):
        with pytest.raises(PluginError, match=told):
            layer_of(odd(create=create(filled)))
    with pytest.raises(ModelError, match="mlp: the products of Int8Experts may depend on the rows"):
        layer_of(odd(batch_invariant=False), batch_invariant=True)


def test_gates_and_ups_that_share_an_entry_are_refused() -> None:
    def create(layer: MoE, site: ExpertsSite, **like: Any) -> Any:
        axes = (Axis("out", 8), Axis("in"))
        layer.w = torch.nn.Parameter(torch.zeros(EXPERTS, *site.gate_up.shape(*axes)))
        return {"w": ExpertsParameter("gate_up", "w", axes)}

    layer = layer_of(odd(create=create), checkpoint=StackedTensors())
    with pytest.raises(ModelError, match=r"mlp.experts.gate_up_proj_w holds 8 outputs an entry"):
        load_weights(layer, [])


def test_adapters_of_experts_need_plain_ones() -> None:
    rows = AdapterRows(8, 8, experts=True)
    with pytest.raises(ModelError, match=r"mlp: adapters of experts .* by Int8Experts"):
        layer_of(Int8({}, {}), adapters=rows)
    layer_of(Int8({}, {}), adapters=AdapterRows(8, 8))
    layer_of(None, adapters=rows)
