from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from octavo.layers import adapted_linear
from octavo.layers.adapted import AdapterRows
from octavo.layers.adapted_linear import AdaptedLinear
from octavo.layers.unquantized import UnquantizedLinear
from octavo_kernels.hopper_products import Launch
from octavo_kernels.linear.adapted import Adapters
from octavo_kernels.lora import group_tokens
from octavo_registry.linear import QuantizationMethod


class Quantized:
    """A method that multiplies in a way of its own."""

    batch_invariant = False

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        return x @ cast(Tensor, layer.weight).T


def layer_of(method: object, *, grouped: bool) -> tuple[AdaptedLinear, nn.Module]:
    """A linear of 4 inputs and 8 outputs, in a step whose two tokens have one adapter or none."""
    two_T = torch.ones(2, dtype=torch.int32)
    groups = {"linear": group_tokens(two_T, two_T, pool_rows=3)} if grouped else {}
    rows = cast(AdapterRows, SimpleNamespace(groups=groups, batch_invariant=False))
    adapted = AdaptedLinear(cast(QuantizationMethod, method), rows, "linear")
    adapted.part_ends = (4, 8)
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.ones(8, 4), requires_grad=False)
    layer.adapter_down_PQI, layer.adapter_up_PO = torch.ones(3, 2, 4), torch.ones(3, 8)
    return adapted, layer


@pytest.mark.parametrize("grouped", [True, False])
def test_where_one_launch_does_it_all_nothing_goes_around(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def kernel_for(
        x: Tensor, weight: Tensor, epilogue: str, residual: Tensor | None, adapters: Adapters
    ) -> Launch:
        assert (list(adapters.part_ends), residual is not None) == ([4, 8], epilogue == "add")

        def launch(out: Tensor, *arguments: object) -> None:
            asked.append(epilogue)
            out.fill_(7.0)

        return launch

    monkeypatch.setattr(adapted_linear, "kernel_for", kernel_for)
    adapted, layer = layer_of(UnquantizedLinear(), grouped=grouped)
    x, residual = torch.ones(2, 4), torch.zeros(2, 8)
    outs = [
        adapted.apply(layer, x, None),
        adapted.add_(layer, residual, x, None),
        adapted.gated(layer, x, None, "silu"),
    ]
    assert asked == (["store", "add", "silu"] if grouped else [])
    assert outs[1] is residual
    assert [list(out.shape) for out in outs] == [[2, 8], [2, 8], [2, 4]]
    assert all(bool((out == 7.0).all()) is grouped for out in outs)


def test_what_another_method_multiplies_gets_the_adapters_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(adapted_linear, "kernel_for")
    adapted, layer = layer_of(Quantized(), grouped=True)
    out = adapted.apply(layer, torch.ones(2, 4), None)
    assert torch.equal(out, torch.full((2, 8), 4.0 + 4.0))
