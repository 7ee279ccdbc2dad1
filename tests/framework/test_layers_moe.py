from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.errors import ModelError
from octavo.layers.loading import load_weights
from octavo.layers.moe import ExpertTensors, MoE, Routing, StackedTensors
from octavo_kernels.moe import lacking
from octavo_registry.model import ModelSpec

EXPERTS, HIDDEN, INTERMEDIATE = 5, 6, 8


class NoCollectives:
    """For tests that look at one rank's own part."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


def layer_of(routing: dict[str, Any] | None = None, **changes: Any) -> MoE:
    options = {
        name: changes.pop(name) for name in ("activation", "bias", "checkpoint") if name in changes
    }
    spec: dict[str, Any] = {
        "architecture": "Test",
        "config": {},
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "max_model_len": 64,
        **changes,
    }
    return MoE(
        "mlp",
        HIDDEN,
        INTERMEDIATE,
        routing=Routing(num_experts=EXPERTS, chosen=2, **(routing or {})),
        **{"activation": "silu", **options},
        spec=ModelSpec(**spec),
    )


def checkpoint(*, bias: bool = False) -> dict[str, Tensor]:
    tensors = {"mlp.gate.weight": torch.randn(EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        for child, shape in (
            ("gate_proj", (INTERMEDIATE, HIDDEN)),
            ("up_proj", (INTERMEDIATE, HIDDEN)),
            ("down_proj", (HIDDEN, INTERMEDIATE)),
        ):
            name = f"mlp.experts.{expert}.{child}"
            tensors[f"{name}.weight"] = torch.randn(shape)
            if bias:
                tensors[f"{name}.bias"] = torch.randn(shape[0])
    return tensors


def stacked(tensors: dict[str, Tensor], child: str, key: str) -> Tensor:
    return torch.stack([tensors[f"mlp.experts.{i}.{child}.{key}"] for i in range(EXPERTS)])


def expected(tensors: dict[str, Tensor], x_TD: Tensor) -> Tensor:
    """As Mixtral is written down: the chosen experts' softmax weights sum to one."""
    weights_TX = F.linear(x_TD, tensors["mlp.gate.weight"]).softmax(dim=-1)
    out_TD = torch.zeros_like(x_TD)
    for token, weights_X in enumerate(weights_TX):
        best = weights_X.topk(2)
        for weight, expert in zip(best.values / best.values.sum(), best.indices, strict=True):

            def linear(child: str, x: Tensor, expert: int = int(expert)) -> Tensor:
                name = f"mlp.experts.{expert}.{child}"
                return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

            x_D = x_TD[token]
            between_I = F.silu(linear("gate_proj", x_D)) * linear("up_proj", x_D)
            out_TD[token] += weight * linear("down_proj", between_I)
    return out_TD


@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_computes_what_mixtral_writes_down(bias: bool) -> None:
    layer, tensors = layer_of(bias=bias), checkpoint(bias=bias)
    assert load_weights(layer, tensors.items()) == {name for name, _ in layer.named_parameters()}
    x_TD = torch.randn(7, HIDDEN)
    torch.testing.assert_close(layer(x_TD), expected(tensors, x_TD))
    residual_TD = torch.randn(7, HIDDEN)
    before_TD = residual_TD.clone()
    assert layer.add_to(residual_TD, x_TD) is residual_TD
    torch.testing.assert_close(residual_TD, before_TD + expected(tensors, x_TD))


def test_ranks_add_up_to_the_whole() -> None:
    tensors, x_TD = checkpoint(bias=True), torch.randn(4, HIDDEN)
    sum_TD = torch.zeros(4, HIDDEN)
    for rank in range(2):
        layer = layer_of(bias=True, tp_rank=rank, tp_size=2, collectives=NoCollectives())
        load_weights(layer, tensors.items())
        assert layer.down_proj.shape == (EXPERTS, HIDDEN, INTERMEDIATE // 2)
        sum_TD += layer(x_TD)
        residual_TD = torch.ones(4, HIDDEN)
        torch.testing.assert_close(layer.add_to(residual_TD, x_TD), layer(x_TD) + 1)
    torch.testing.assert_close(sum_TD, expected(tensors, x_TD))


@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_tensors_fill_the_same_parameters(
    transposed: bool, interleaved: bool, tp_size: int
) -> None:
    tensors = checkpoint(bias=True)
    gate_up = {
        key: torch.stack(
            [stacked(tensors, child, key) for child in ("gate_proj", "up_proj")],
            dim=2 if interleaved else 1,
        ).flatten(1, 2)
        for key in ("weight", "bias")
    }
    down_XDI = stacked(tensors, "down_proj", "weight")
    fused = {
        "mlp.gate.weight": tensors["mlp.gate.weight"],
        "mlp.experts.gate_up_proj": gate_up["weight"].mT if transposed else gate_up["weight"],
        "mlp.experts.gate_up_proj_bias": gate_up["bias"],
        "mlp.experts.down_proj": down_XDI.mT if transposed else down_XDI,
        "mlp.experts.down_proj_bias": stacked(tensors, "down_proj", "bias"),
    }
    names = StackedTensors(transposed=transposed, interleaved=interleaved)
    for rank in range(tp_size):
        of_rank: dict[str, Any] = {
            "tp_rank": rank,
            "tp_size": tp_size,
            "collectives": NoCollectives(),
        }
        layer, other = (
            layer_of(bias=True, **of_rank),
            layer_of(bias=True, checkpoint=names, **of_rank),
        )
        load_weights(layer, tensors.items())
        loaded = load_weights(other, fused.items())
        assert loaded == {name for name, _ in other.named_parameters()}
        for name, parameter in layer.named_parameters():
            assert torch.equal(other.get_parameter(name), parameter)


def test_experts_may_have_other_names() -> None:
    tensors = {
        name.replace("gate_proj", "w1").replace("up_proj", "w3").replace("down_proj", "w2"): tensor
        for name, tensor in checkpoint().items()
    }
    names = ExpertTensors(gate="experts.{}.w1", up="experts.{}.w3", down="experts.{}.w2")
    layer = layer_of(checkpoint=names)
    assert "gate_up_proj" in load_weights(layer, tensors.items())
    del tensors["mlp.experts.4.w3.weight"]
    assert "gate_up_proj" not in load_weights(layer_of(checkpoint=names), tensors.items())


def test_a_bias_for_the_choice_is_loaded_and_turns_it() -> None:
    routing = {"score": "sigmoid", "choice_bias": "gate.e_score_correction_bias"}
    layer, tensors = layer_of(routing), checkpoint()
    tensors["mlp.gate.e_score_correction_bias"] = torch.tensor([0.0, 0.0, 9.0, 9.0, 0.0])
    load_weights(layer, tensors.items())
    x_TD = torch.randn(3, HIDDEN)
    before_TD = layer(x_TD)
    for parameter in (layer.gate_up_proj, layer.down_proj):
        parameter.data[[0, 1, 4]] = torch.nan
    torch.testing.assert_close(layer(x_TD), before_TD)


@pytest.mark.parametrize("in_float32", [False, True])
def test_a_router_in_float32_tells_scores_apart_that_16_bits_round_to_one(in_float32: bool) -> None:
    layer = layer_of({"router_in_float32": in_float32}, dtype=torch.bfloat16)
    tensors = checkpoint()
    tensors["mlp.gate.weight"] = torch.zeros(EXPERTS, HIDDEN)
    tensors["mlp.gate.weight"][:3, :2] = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    load_weights(layer, tensors.items())
    layer.down_proj.data[0] = torch.nan  # of equal scores the first two are chosen
    x_TD = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
    x_TD[0, :2] = torch.tensor([1.0, 2**-12])
    assert layer(x_TD).isnan().any() != in_float32


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ModelError, match="hidden_act='relu' of mlp"):
        layer_of(activation="relu")
    with pytest.raises(ModelError, match="8 cannot be split among tensor_parallel_size=3"):
        layer_of(tp_size=3, collectives=NoCollectives())
    with pytest.raises(ModelError, match=r"mlp: route: groups=\(2, 1\) do not divide 5 experts"):
        layer_of(routing={"groups": (2, 1)})


@pytest.mark.parametrize(
    ("capability", "dtype", "sizes", "told"),
    [
        ((7, 5), torch.bfloat16, (64, 48), "in bfloat16 need compute capability 8.0 .* has 7.5"),
        ((9, 0), torch.bfloat16, (60, 48), "of D=60 and I=48 have no kernel"),
        ((9, 0), torch.float64, (64, 48), "of torch.float64 have no kernel"),
    ],
)
def test_experts_that_a_device_has_no_kernel_for_are_refused_before_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    sizes: tuple[int, int],
    told: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    lacking.cache_clear()
    spec = ModelSpec(
        architecture="Test",
        config={},
        dtype=dtype,
        max_model_len=64,
        device=torch.device("cuda", 0),
    )
    with pytest.raises(ModelError, match=f"mlp: its experts {told}"):
        MoE("mlp", *sizes, routing=Routing(num_experts=4, chosen=2), activation="silu", spec=spec)
    lacking.cache_clear()


@pytest.mark.gpu
def test_the_layer_on_a_gpu_agrees_with_the_cpu() -> None:
    torch.manual_seed(0)
    spec: dict[str, Any] = {
        "architecture": "Test",
        "config": {},
        "dtype": torch.float32,
        "max_model_len": 64,
    }
    layers = [
        MoE(
            "mlp",
            64,
            48,
            routing=Routing(num_experts=16, chosen=3),
            activation="gelu_pytorch_tanh",
            spec=ModelSpec(**spec, device=torch.device(device)),
        )
        for device in ("cpu", "cuda:0")
    ]
    for ours, theirs in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        ours.data.normal_(std=0.2)
        theirs.data.copy_(ours)
    x_TD = torch.randn(21, 64)
    torch.testing.assert_close(layers[1](x_TD.cuda()).cpu(), layers[0](x_TD), rtol=1e-3, atol=1e-3)
