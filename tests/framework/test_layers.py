from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.layers.embedding import PositionEmbedding, VocabParallelEmbedding
from octavo.layers.linear import ColumnParallelLinear, Linear, QKVLinear, RowParallelLinear
from octavo.layers.loading import load_weights
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import LayerNorm, RMSNorm, SplitRMSNorm
from octavo.layers.sharding import Stage, rank_shard
from octavo.layers.unquantized import UnquantizedLinear
from octavo_registry.linear import Quantization, QuantizationMethod
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Axis, ExpertsSite, Site


class NoCollectives:
    """For tests that look at one rank's own part."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x


def spec_of(**changes: Any) -> ModelSpec:
    return ModelSpec(
        **{
            "architecture": "Test",
            "config": {},
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "max_model_len": 64,
            "collectives": NoCollectives(),
            **changes,
        }
    )


def qkv_of(**changes: Any) -> QKVLinear:
    return QKVLinear(
        "attn.qkv_proj", 8, heads=4, kv_heads=2, head_dim=3, bias=True, spec=spec_of(**changes)
    )


def qkv_checkpoint() -> dict[str, Tensor]:
    sizes = {"q": 12, "k": 6, "v": 6}
    weights = {f"attn.{name}_proj.weight": torch.randn(size, 8) for name, size in sizes.items()}
    return weights | {f"attn.{name}_proj.bias": torch.randn(size) for name, size in sizes.items()}


def test_fused_parts_come_to_stand_side_by_side() -> None:
    layer, tensors = qkv_of(), qkv_checkpoint()
    assert load_weights(layer, tensors.items()) == {"weight", "bias"}
    x_TI = torch.randn(5, 8)
    for name, part_THD in zip("qkv", layer.heads_of(x_TI), strict=True):
        weight, bias = (tensors[f"attn.{name}_proj.{key}"] for key in ("weight", "bias"))
        expected_TO = F.linear(x_TI, weight, bias)
        torch.testing.assert_close(part_THD.flatten(1), expected_TO)


@pytest.mark.parametrize("transposed", [False, True])
def test_each_rank_takes_its_parts_of_a_tensor_that_the_checkpoint_has_fused(
    transposed: bool,
) -> None:
    weight_OI, bias_O = torch.randn(24, 8), torch.randn(24)  # 4 + 2 + 2 heads of 3
    stored = {"attn.qkv_proj.weight": weight_OI.T if transposed else weight_OI}
    stored["attn.qkv_proj.bias"] = bias_O
    for rank in range(2):
        layer = QKVLinear(
            "attn.qkv_proj",
            8,
            heads=4,
            kv_heads=2,
            head_dim=3,
            bias=True,
            spec=spec_of(tp_rank=rank, tp_size=2),
            stored_fused=True,
            transposed=transposed,
        )
        assert load_weights(layer, stored.items()) == {"weight", "bias"}
        firsts = ((6 * rank, 6), (12 + 3 * rank, 3), (18 + 3 * rank, 3))
        rows = [row for first, size in firsts for row in range(first, first + size)]
        assert torch.equal(layer.weight, weight_OI[rows])
        assert torch.equal(layer.bias, bias_O[rows])


def test_a_transposed_row_parallel_linear_takes_its_inputs() -> None:
    weight_IO = torch.randn(6, 4)
    spec = spec_of(tp_rank=1, tp_size=3)
    layer = RowParallelLinear("down", 6, 4, bias=False, spec=spec, transposed=True)
    load_weights(layer, [("down.weight", weight_IO)])
    assert torch.equal(layer.weight, weight_IO[2:4].T)
    assert layer.weight.is_contiguous()


def test_positions_begin_behind_the_rows_that_are_not_used() -> None:
    layer = PositionEmbedding("positions", 5, 4, spec=spec_of(), offset=2)
    weight_PD = torch.randn(7, 4)
    assert load_weights(layer, [("positions.weight", weight_PD)]) == {"weight"}
    assert torch.equal(layer(torch.tensor([0, 4])), weight_PD[[2, 6]])


@pytest.mark.parametrize("affine", [False, True])
def test_a_layer_norm_is_that_of_torch(affine: bool) -> None:
    reference = nn.LayerNorm(8, eps=1e-3, elementwise_affine=affine)
    for parameter in reference.parameters():
        nn.init.normal_(parameter)
    layer = LayerNorm("norm", 8, 1e-3, spec=spec_of(), affine=affine)
    state = {f"norm.{name}": tensor for name, tensor in reference.state_dict().items()}
    assert load_weights(layer, state.items()) == set(reference.state_dict())
    x_TD = torch.randn(3, 8)
    torch.testing.assert_close(layer(x_TD), reference(x_TD))


class SumOfTwo(NoCollectives):
    """What the other rank gives is known."""

    def __init__(self, other: Tensor) -> None:
        self._other = other

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + self._other


def test_a_split_norm_is_that_of_all_entries() -> None:
    weight_D, x_TD = torch.randn(8), torch.randn(3, 8)
    whole = RMSNorm("norm", 8, 1e-3, spec=spec_of())
    load_weights(whole, [("norm.weight", weight_D)])
    for rank in range(2):
        mine, others = (slice(4 * part, 4 * part + 4) for part in (rank, 1 - rank))
        collectives = SumOfTwo(x_TD[:, others].square().mean(-1, keepdim=True))
        spec = spec_of(tp_rank=rank, tp_size=2, collectives=collectives)
        layer = SplitRMSNorm("norm", rank_shard(8, spec, "entries"), 1e-3, spec=spec)
        assert load_weights(layer, [("norm.weight", weight_D)]) == {"weight"}
        torch.testing.assert_close(layer(x_TD[:, mine]), whole(x_TD)[:, mine])


def test_a_fused_parameter_is_not_loaded_before_its_last_part() -> None:
    tensors = qkv_checkpoint()
    del tensors["attn.k_proj.weight"]
    assert load_weights(qkv_of(), tensors.items()) == {"bias"}


def test_each_rank_takes_its_heads_and_few_kv_heads_are_shared() -> None:
    tensors = qkv_checkpoint()
    q, k = tensors["attn.q_proj.weight"], tensors["attn.k_proj.weight"]
    for rank in range(4):
        layer = qkv_of(tp_rank=rank, tp_size=4)
        load_weights(layer, tensors.items())
        assert (layer.heads, layer.kv_heads) == (1, 1)
        assert torch.equal(layer.weight[:3], q[3 * rank : 3 * rank + 3])
        kv_head = rank // 2
        assert torch.equal(layer.weight[3:6], k[3 * kv_head : 3 * kv_head + 3])


def test_column_and_row_parallel_ranks_add_up_to_the_whole() -> None:
    tensors = {"up.weight": torch.randn(6, 4), "down.weight": torch.randn(4, 6)}
    tensors["down.bias"] = torch.randn(4)
    x_TI = torch.randn(3, 4)
    sum_TO = torch.zeros(3, 4)
    for rank in range(2):
        spec = spec_of(tp_rank=rank, tp_size=2)
        up = ColumnParallelLinear("up", 4, {"up": 6}, bias=False, spec=spec)
        down = RowParallelLinear("down", 6, 4, bias=True, spec=spec)
        load_weights(nn.ModuleList([up, down]), tensors.items())
        assert up.out_features == down.in_features == 3
        sum_TO += down(up(x_TI))
    expected_TO = F.linear(
        F.linear(x_TI, tensors["up.weight"]), tensors["down.weight"], tensors["down.bias"]
    )
    torch.testing.assert_close(sum_TO, expected_TO)


def test_embedding_ranks_add_up_and_pad_an_uneven_vocabulary() -> None:
    weight_VD = torch.randn(7, 4)
    tokens_T = torch.arange(7)
    sum_TD = torch.zeros(7, 4)
    for rank in range(4):
        layer = VocabParallelEmbedding("e", 7, 4, spec=spec_of(tp_rank=rank, tp_size=4))
        assert load_weights(layer, [("e.weight", weight_VD)]) == {"weight"}
        assert layer.weight.shape == (2, 4)
        sum_TD += layer(tokens_T)
    torch.testing.assert_close(sum_TD, weight_VD)


def test_a_misshapen_tensor_is_named_with_both_shapes() -> None:
    tensors = qkv_checkpoint() | {"attn.k_proj.weight": torch.randn(5, 8)}
    message = r"'attn.k_proj.weight': expected shape \[6, 8\], found \[5, 8\]"
    with pytest.raises(ModelError, match=message):
        load_weights(qkv_of(), tensors.items())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (4, 8), (4, 0), (0, 4)])
def test_query_heads_that_do_not_share_key_heads_evenly_are_refused(heads, kv_heads) -> None:
    with pytest.raises(ModelError, match=f"{heads} attention heads of .* {kv_heads} key/value"):
        QKVLinear("qkv", 8, heads=heads, kv_heads=kv_heads, head_dim=3, bias=False, spec=spec_of())


def test_a_misshapen_tensor_is_not_broadcast() -> None:
    norm = RMSNorm("norm", 8, 1e-5, spec=spec_of())
    with pytest.raises(ModelError, match=r"expected shape \[8\], found \[1\]"):
        load_weights(norm, [("norm.weight", torch.ones(1))])


def test_a_tensor_that_fits_nothing_is_named_unless_it_is_to_be_ignored() -> None:
    tensors = [*qkv_checkpoint().items(), ("attn.extra", torch.zeros(2, 3))]
    with pytest.raises(ModelError, match=r"'attn.extra' of shape \[2, 3\] fits no layer"):
        load_weights(qkv_of(), tensors)
    loaded = load_weights(qkv_of(), tensors, ignore=lambda name: name == "attn.extra")
    assert loaded == {"weight", "bias"}


def test_tensors_are_let_go_one_by_one() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in qkv_checkpoint().items():
            copy = tensor.clone()
            alive.append(weakref.ref(copy))
            yield name, copy
            del copy
            assert sum(ref() is not None for ref in alive) <= 1

    load_weights(qkv_of(), stream())
    assert len(alive) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 3, 70])
def test_packing_for_a_cpu_does_not_change_the_product(dtype: torch.dtype, num_tokens: int) -> None:
    layer = qkv_of(dtype=dtype)
    load_weights(layer, qkv_checkpoint().items())
    x_TI = torch.randn(2 * num_tokens, 8).to(dtype)[::2]
    before_TO = layer(x_TI)
    layer.finish_weights()
    layer.finish_weights()
    torch.testing.assert_close(layer(x_TI), before_TO)


class HalvedLinear:
    """A quantization of all linears that packs two inputs into one entry, inputs first."""

    batch_invariant = False

    def method_of(self, site: Site | ExpertsSite) -> HalvedLinear:
        return self

    def create(
        self, layer: nn.Module, site: Site, *, dtype: torch.dtype, device: torch.device
    ) -> Mapping[str, tuple[Axis, ...]]:
        axes = {"packed": (Axis("in", 2), Axis("out")), "scale": (Axis("out"),)}
        for key, its_axes in axes.items():
            setattr(layer, key, nn.Parameter(torch.zeros(site.shape(*its_axes))))
        return axes

    def finish(self, layer: nn.Module) -> None:
        raise NotImplementedError

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        return x[:, ::2] @ layer.packed * layer.scale

    def dequantize(self, layer: nn.Module) -> Tensor:
        raise NotImplementedError


def test_a_quantization_brings_parameters_of_its_own_shape() -> None:
    method = HalvedLinear()
    assert isinstance(method, Quantization)
    assert isinstance(method, QuantizationMethod)
    assert isinstance(UnquantizedLinear(), QuantizationMethod)
    tensors = {
        "gate.packed": torch.randn(4, 6),
        "up.packed": torch.randn(4, 6),
        "gate.scale": torch.randn(6),
        "up.scale": torch.randn(6),
        "down.packed": torch.randn(6, 8),
        "down.scale": torch.randn(8),
    }
    spec = spec_of(quantization=method, tp_rank=1, tp_size=3)
    up = ColumnParallelLinear("gate_up", 8, {"gate": 6, "up": 6}, bias=False, spec=spec)
    down = RowParallelLinear("down", 12, 8, bias=False, spec=spec)
    loaded = load_weights(nn.ModuleDict({"up": up, "down": down}), tensors.items())
    assert loaded == {"up.packed", "up.scale", "down.packed", "down.scale"}
    columns = [tensors["gate.packed"][:, 2:4], tensors["up.packed"][:, 2:4]]
    assert torch.equal(up.packed, torch.cat(columns, dim=1))
    assert torch.equal(up.scale, torch.cat([tensors["gate.scale"][2:4], tensors["up.scale"][2:4]]))
    assert torch.equal(down.packed, tensors["down.packed"][2:4])
    assert torch.equal(down.scale, tensors["down.scale"])


def test_layers_are_registered_under_their_names() -> None:
    mlp = GatedMLP("mlp", 4, 6, activation="silu", bias=False, spec=spec_of())
    linears = {m.name for m in mlp.modules() if isinstance(m, Linear)}
    assert linears == {"mlp.gate_up_proj", "mlp.down_proj"}


def test_a_stage_knows_which_tensors_are_elsewhere() -> None:
    stage = Stage.of(spec_of(first_layer=2, last_layer=4), 6)
    assert (stage.is_first, stage.is_last) == (False, False)
    assert stage.is_elsewhere("model.layers.1.mlp.up_proj.weight")
    assert not stage.is_elsewhere("model.layers.3.mlp.up_proj.weight")
    assert not stage.is_elsewhere("model.layers.6.mlp.up_proj.weight")
    assert stage.is_elsewhere("transformer.h.1.mlp.c_fc.weight")
    assert not stage.is_elsewhere("transformer.h.3.mlp.c_fc.weight")
    assert stage.is_elsewhere("lm_head.weight")
    assert not Stage.of(spec_of(), 6).is_elsewhere("lm_head.weight")
    with pytest.raises(ModelError, match="layers 4 to 8"):
        Stage.of(spec_of(first_layer=4, last_layer=8), 6)
