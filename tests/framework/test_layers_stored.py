"""How parameters of any layout are cut out of a checkpoint: by axes, units, parts and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octavo.errors import ModelError, PluginError
from octavo.layers.linear import ColumnParallelLinear, Linear, QKVLinear, RowParallelLinear
from octavo.layers.loading import load_weights
from octavo_registry import Axis, ExpertsSite, ModelSpec, Shard, Site

OUT, IN = Axis("out"), Axis("in")


@dataclass
class Layout:
    """A method whose parameters have the given axes, whole ones with 2 entries."""

    axes: Mapping[str, tuple[Any, ...]]
    batch_invariant: bool = False
    lengths: tuple[int, ...] | None = None

    def method_of(self, site: Site | ExpertsSite) -> Layout:
        self.site = site
        return self

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        for key, axes in self.axes.items():
            shape = self.lengths or [
                site.length(axis) if getattr(axis, "along", None) else 2 for axis in axes
            ]
            layer.register_parameter(key, nn.Parameter(torch.zeros(*shape)))
        return self.axes

    def finish(self, layer: nn.Module) -> None: ...

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def dequantize(self, layer: nn.Module) -> Tensor:
        raise NotImplementedError


class NoCollectives:
    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    all_gather = all_reduce


def spec_of(method: object, rank: int = 0, num_ranks: int = 1, **changes: Any) -> ModelSpec:
    return ModelSpec(
        **{
            "architecture": "Test",
            "config": {},
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "max_model_len": 64,
            "tp_rank": rank,
            "tp_size": num_ranks,
            "collectives": NoCollectives(),
            "quantization": method,
            **changes,
        }
    )


def test_parts_that_end_within_a_block_have_one_more() -> None:
    """As DeepSeek's compressed queries and keys: 12 blocks of 128 outputs, and 4.5."""
    spec = spec_of(Layout({"scale": (Axis("out", 128), Axis("in", 128))}))
    sizes = {"q_a_proj": 1536, "kv_a_proj": 576}
    parts = [(name, Shard.whole(size)) for name, size in sizes.items()]
    layer = Linear("qkv_a_proj", Shard.whole(7168), parts, bias=False, spec=spec)
    assert layer.scale.shape == (17, 56)
    tensors = {"q_a_proj.scale": torch.randn(12, 56), "kv_a_proj.scale": torch.randn(5, 56)}
    assert load_weights(layer, tensors.items()) == {"scale"}
    assert torch.equal(layer.scale, torch.cat([*tensors.values()]))
    tensors["kv_a_proj.scale"] = torch.randn(4, 56)
    with pytest.raises(ModelError, match=r"'kv_a_proj.scale': expected shape \[5, 56\]"):
        load_weights(layer, tensors.items())


def test_a_number_for_each_part_may_stand_as_a_vector_of_one() -> None:
    spec = spec_of(Layout({"scale": (Axis("part"),), "shape": (Axis("part"), Axis())}))
    layer = ColumnParallelLinear("up", 4, {"a": 6, "b": 2}, bias=False, spec=spec)
    tensors = {
        "a.scale": torch.tensor(3.0),
        "b.scale": torch.tensor([5.0]),
        "a.shape": torch.tensor([6.0, 4.0]),
        "b.shape": torch.tensor([2.0, 4.0]),
    }
    assert load_weights(layer, tensors.items()) == {"scale", "shape"}
    assert layer.scale.tolist() == [3, 5]
    assert layer.shape.tolist() == [[6, 4], [2, 4]]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize(
    "axes",
    [
        (OUT, IN),
        (Axis("out", 8), IN),
        (IN, Axis("out", 8)),
        (Axis("in", 8), OUT),
        (Axis("in", 16), Axis("out", 4)),
        (OUT, Axis("in", 16), Axis()),
    ],
)
def test_ranks_have_their_entries_of_every_layout(axes: tuple[Axis, ...], num_ranks: int) -> None:
    sizes = {"gate": 32, "up": 64}

    def stored(name: str, outputs: int, inputs: int) -> Tensor:
        lengths = {"out": outputs, "in": inputs, None: 2}
        return torch.randn([lengths[axis.along] // axis.unit for axis in axes])

    tensors = {f"{name}.w": stored(name, size, 64) for name, size in sizes.items()}
    tensors["down.w"] = stored("down", 16, 64)
    out, into = (next(d for d, axis in enumerate(axes) if axis.along == a) for a in ("out", "in"))
    for rank in range(num_ranks):
        spec = spec_of(Layout({"w": axes}), rank, num_ranks)
        up = ColumnParallelLinear("gate_up", 64, sizes, bias=False, spec=spec)
        down = RowParallelLinear("down", 64, 16, bias=False, spec=spec)
        assert load_weights(nn.ModuleDict({"up": up, "down": down}), tensors.items())
        mine = [tensors[f"{name}.w"].chunk(num_ranks, out)[rank] for name in sizes]
        assert torch.equal(up.w, torch.cat(mine, out))
        assert torch.equal(down.w, tensors["down.w"].chunk(num_ranks, into)[rank])


@pytest.mark.parametrize("what", ["outputs", "inputs"])
def test_a_rank_that_would_cut_a_group_is_refused_with_the_sizes_that_do(what: str) -> None:
    unit = Axis("out", 128) if what == "outputs" else Axis("in", 128)
    layout = Layout({"w": (unit, IN if what == "outputs" else OUT)})

    def make(num_ranks: int) -> Linear:
        spec = spec_of(layout, num_ranks - 1, num_ranks)
        if what == "inputs":
            return RowParallelLinear("down", 768, 4, bias=False, spec=spec)
        return ColumnParallelLinear("up", 4, {"up": 768}, bias=False, spec=spec)

    for num_ranks in (1, 2, 3, 6):
        make(num_ranks)
    with pytest.raises(ModelError) as raised:
        make(4)
    assert f"{what} of " in str(raised.value)
    assert "in groups of 128, which a rank's 192 of 768 would cut" in str(raised.value)
    assert "tensor_parallel_size of 1, 2, 3, 6" in str(raised.value)


def test_parts_of_one_tensor_are_cut_where_they_meet_within_a_block_only_by_ranks() -> None:
    axes = (Axis("out", 16), IN)
    sizes = {"heads": 3, "kv_heads": 1, "head_dim": 8}
    qkv = QKVLinear(
        "qkv", 4, **sizes, bias=False, spec=spec_of(Layout({"w": axes})), stored_fused=True
    )
    tensor = torch.randn(3, 4)  # 24 + 8 + 8 outputs
    load_weights(qkv, [("qkv.w", tensor)])
    assert torch.equal(qkv.w, tensor)
    spec = spec_of(Layout({"w": axes}), 0, 3)
    with pytest.raises(ModelError, match="in groups of 16"):
        QKVLinear("qkv", 4, **sizes, bias=False, spec=spec, stored_fused=True)


def test_what_a_method_says_of_its_parameters_must_be_so() -> None:
    def make(layout: Layout, **changes: Any) -> Linear:
        spec = spec_of(layout, **changes)
        return ColumnParallelLinear("gate_up", 8, {"gate": 6, "up": 6}, bias=False, spec=spec)

    for layout, told in (
        (Layout({"w": ("out",)}), r"gate_up.w: the axis 'out' is no Axis; write Axis\('out'\)"),
        (Layout({"w": (OUT, IN)}, lengths=(12, 7)), "gate_up.w has 7 entries along .*, and 8 are"),
        (Layout({"w": (OUT, IN)}, lengths=(12,)), r"gate_up.w is \[12\], and its method says"),
        (Layout({"w": (IN,)}), r"each of gate, up; give it an Axis\(\"part\"\)"),
    ):
        with pytest.raises(PluginError, match=told):
            make(layout)
    with pytest.raises(ModelError, match="gate_up: the products of Layout may depend on the rows"):
        make(Layout({"w": (OUT, IN)}), batch_invariant=True)
    make(Layout({"w": (OUT, IN)}, batch_invariant=True), batch_invariant=True)


def test_a_quantization_that_gives_no_method_is_named() -> None:
    class Odd:
        def method_of(self, site: Site | ExpertsSite) -> object:
            return 7

    with pytest.raises(PluginError, match="Odd gave int for up, which is no QuantizationMethod"):
        ColumnParallelLinear("up", 8, {"up": 6}, bias=False, spec=spec_of(Odd()))


def test_outputs_come_in_the_order_that_the_layer_needs() -> None:
    order_O = torch.tensor([2, 3, 0, 1, 6, 7, 4, 5])
    axes = {"w": (IN, OUT), "pairs": (Axis("out", 2),), "all": (Axis("part"), Axis())}
    tensors = {"up.w": torch.randn(3, 8), "up.pairs": torch.randn(4), "up.all": torch.randn(2)}
    for rank in range(2):
        spec = spec_of(Layout(axes), rank, 2)
        layer = ColumnParallelLinear("up", 3, {"up": 8}, bias=False, spec=spec)
        layer.reorder("up", order_O)
        load_weights(layer, tensors.items())
        assert torch.equal(layer.w, tensors["up.w"][:, order_O[4 * rank : 4 * rank + 4]])
        pairs = [[1, 0], [3, 2]][rank]
        assert torch.equal(layer.pairs, tensors["up.pairs"][pairs])


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [1, 0, 3, 2], [1, 2, 3, 0]])
def test_outputs_that_share_an_entry_never_change_places_in_silence(order: list[int]) -> None:
    spec = spec_of(Layout({"w": (Axis("out", 2),)}))
    layer = ColumnParallelLinear("up", 3, {"up": 4}, bias=False, spec=spec)
    layer.reorder("up", torch.tensor(order))
    with pytest.raises(ModelError, match=r"up.w holds 2 outputs an entry, and the order"):
        load_weights(layer, [])


def test_a_method_that_reorders_gets_the_order_of_this_ranks_outputs() -> None:
    class Reordering(Layout):
        def reorder(self, order_O: Tensor) -> None:
            self.order_O = order_O

    for rank in range(2):
        method = Reordering({"w": (Axis("out", 2),)})
        spec = spec_of(method, rank, 2)
        layer = ColumnParallelLinear("fused", 3, {"a": 4, "b": 8}, bias=True, spec=spec)
        layer.reorder("b", torch.tensor([1, 0, 3, 2, 5, 4, 7, 6]))
        tensors = {name: torch.arange(4.0) for name in ("a.bias", "b.w")}
        tensors |= {"b.bias": torch.arange(8.0), "a.w": torch.arange(2.0)}
        load_weights(layer, tensors.items())
        assert method.order_O.tolist() == [0, 1, 3, 2, 5, 4]
        half = slice(4 * rank, 4 * rank + 4)
        assert layer.bias[2:].tolist() == [1, 0, 3, 2, 5, 4, 7, 6][half]
        assert layer.w.tolist() == [rank, 2.0 * rank, 2 * rank + 1]
