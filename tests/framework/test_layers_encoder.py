"""What encoders are made of: products that add and activate, states that layers keep."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.linear import ReplicatedLinear
from octavo.layers.loading import load_weights
from octavo.layers.unquantized import UnquantizedLinear
from octavo.layers.vision import VisionTransformer
from octavo_registry.linear import FusedProducts, Quantization
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, ExpertsSite, Site


class PlainMethod:
    """A quantization without products of its own."""

    batch_invariant = False

    def method_of(self, site: Site | ExpertsSite) -> PlainMethod:
        return self

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        axes = (Axis("out"), Axis("in"))
        layer.weight = nn.Parameter(torch.empty(site.shape(*axes), dtype=dtype))
        return {"weight": axes}

    def finish(self, layer: nn.Module) -> None:
        """Nothing."""

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, layer.weight, bias)

    def dequantize(self, layer: nn.Module) -> Tensor:
        return layer.weight.float()


def spec_of(
    dtype: torch.dtype, quantization: Quantization | None = None, **config: object
) -> ModelSpec:
    return ModelSpec(
        architecture="Test",
        config=config,
        dtype=dtype,
        device=torch.device("cpu"),
        max_model_len=64,
        quantization=quantization,
    )


@torch.inference_mode()
@pytest.mark.parametrize("shape", [(7, 16), (2, 3, 16)])
@pytest.mark.parametrize(
    (
        "dtype",
        "method",
    ),  # float16 has no packed weights on a CPU: it goes to the kernels' reference
    [(torch.float32, None), (torch.float16, None), (torch.float32, PlainMethod())],
)
def test_a_replicated_linear_adds_in_place_and_activates(
    dtype: torch.dtype, method: Quantization | None, shape: tuple[int, ...]
) -> None:
    layer = ReplicatedLinear("fc", 16, 8, bias=True, spec=spec_of(dtype, method))
    weight_OI, bias_O = torch.randn(8, 16).to(dtype), torch.randn(8).to(dtype)
    load_weights(layer, [("fc.weight", weight_OI), ("fc.bias", bias_O)])
    layer.finish_weights()
    x, residual = torch.randn(shape).to(dtype), torch.randn(*shape[:-1], 8).to(dtype)
    product = F.linear(x.float(), weight_OI.float(), bias_O.float())
    expected = (residual.float() + product).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 4e-3
    assert layer.add_to(residual, x) is residual
    torch.testing.assert_close(residual, expected, rtol=tolerance, atol=tolerance)
    for activation, active in (
        ("quick_gelu", product * torch.sigmoid(1.702 * product)),
        ("gelu", F.gelu(product)),
        ("gelu_tanh", F.gelu(product, approximate="tanh")),
    ):
        found = layer.activated(x, activation)
        torch.testing.assert_close(found, active.to(dtype), rtol=tolerance, atol=tolerance)


def test_plain_weights_have_products_of_their_own() -> None:
    assert isinstance(UnquantizedLinear(), FusedProducts)
    assert not isinstance(PlainMethod(), FusedProducts)


@torch.inference_mode()
def test_states_that_are_asked_for_are_not_what_later_layers_add_to() -> None:
    spec = spec_of(
        torch.float32,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
    )
    towers = [
        VisionTransformer("tower", spec, class_token=False, num_layers=count, final_norm=False)
        for count in (0, 1, 3)
    ]
    for parameter in towers[-1].parameters():
        nn.init.normal_(parameter, std=0.2)
    state = towers[-1].state_dict()
    for tower in towers:
        tower.load_state_dict({name: state[name] for name in tower.state_dict()})
    pixels_NCHW = torch.randn(2, 3, 8, 8)
    before_NCHW = pixels_NCHW.clone()
    alone = [tower(pixels_NCHW)[0] for tower in towers]
    together = towers[-1](pixels_NCHW, [0, 1, 3])
    for found_NPD, expected_NPD in zip(together, alone, strict=True):
        torch.testing.assert_close(found_NPD, expected_NPD)
    assert torch.equal(pixels_NCHW, before_NCHW)
