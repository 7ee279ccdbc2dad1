"""An adapter that does not fit a model is refused, with the names that do not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from octavo.adapters.check import check_adapter
from octavo.errors import AdapterError
from octavo.messages import LinearSize
from octavo_registry.adapters import Adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
LINEARS = {Q: LinearSize(8, 12), DOWN: LinearSize(16, 8)}


def adapter(names: Mapping[str, LinearSize] = LINEARS, *, rank: int = 2) -> Adapter:
    return Adapter(
        rank=rank,
        scaling=dict.fromkeys(names, 0.5),
        down={name: torch.ones(rank, size.inputs) for name, size in names.items()},
        up={name: torch.ones(size.outputs, rank) for name, size in names.items()},
        content_hash="",
        base_model="org/Base",
    )


def with_down(name: str, tensor: Tensor) -> Adapter:
    given = adapter()
    return replace(given, down={**given.down, name: tensor})


def test_an_adapter_that_fits_comes_under_the_models_names() -> None:
    names = {
        name.replace("model.", "model.language_model."): size for name, size in LINEARS.items()
    }
    found = check_adapter(adapter(names), LINEARS)
    assert found.down.keys() == found.up.keys() == found.scaling.keys() == LINEARS.keys()
    assert found.down[Q].shape == (2, 8)


def test_single_experts_of_any_ranks_become_one_pair_of_matrices() -> None:
    """Gates before ups; experts that are not named, and their halves, stay as they are."""
    torch.manual_seed(0)
    layer = "model.layers.0.block_sparse_moe.experts"
    linears = {
        f"{layer}.gate_up_proj": LinearSize(4 * 8, 4 * 2 * 6, experts=4),
        f"{layer}.down_proj": LinearSize(4 * 6, 4 * 8, experts=4),
        Q: LinearSize(8, 12),
    }
    ranks = {f"{layer}.2.w3": 2, f"{layer}.0.w1": 3, f"{layer}.3.w1": 1, Q: 2}
    given = Adapter(
        rank=3,
        scaling={name: 0.5 + rank for name, rank in ranks.items()},
        down={name: torch.randn(rank, 8) for name, rank in ranks.items()},
        up={name: torch.randn(12 if name == Q else 6, rank) for name, rank in ranks.items()},
        content_hash="of the file",
    )
    found = check_adapter(given, linears)
    name = f"{layer}.gate_up_proj"
    assert found.down.keys() == {Q, name}
    assert (found.rank, found.content_hash) == (5, "of the file")
    down_XRI = found.down[name].unflatten(1, (4, 8)).transpose(0, 1)
    change_XOI = found.scaling[name] * found.up[name].unflatten(0, (4, 12)) @ down_XRI
    expected_XOI = torch.zeros(4, 12, 8)
    for one, expert, half in (("2.w3", 2, 1), ("0.w1", 0, 0), ("3.w1", 3, 0)):
        one = f"{layer}.{one}"
        change = given.scaling[one] * given.up[one] @ given.down[one]
        expected_XOI[expert, 6 * half : 6 * half + 6] = change
    torch.testing.assert_close(change_XOI, expected_XOI)
    stray = f"{layer}.4.w1"
    with pytest.raises(AdapterError, match=f"must name what a layer of the model has: {stray}"):
        check_adapter(adapter({stray: LinearSize(8, 6)}), linears)


def test_a_name_that_the_model_has_means_that_one_even_where_another_is_like_it() -> None:
    linears = {"model.x": LinearSize(8, 8), "language_model.x": LinearSize(4, 4)}
    found = check_adapter(adapter({"language_model.x": linears["language_model.x"]}), linears)
    assert found.down["language_model.x"].shape == (2, 4)
    with pytest.raises(AdapterError, match=r"touches no linear .*: it has transformer\.x"):
        check_adapter(adapter({"transformer.x": LinearSize(4, 4)}), linears)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (adapter({}), "has no tensors"),
        (adapter({"h.0.attn": LinearSize(8, 8)}), r"touches no linear .* it has h\.0\.attn, and"),
        (
            adapter({**LINEARS, "model.layers.9.mlp.down_proj": LinearSize(16, 8)}),
            r"layers where the model has none: model\.layers\.9\.mlp\.down_proj; it has 1 layer,",
        ),
        (
            adapter({"model.layers.9.mlp.down_proj": LinearSize(16, 8)}),
            r"layers where the model has none: model\.layers\.9\.mlp\.down_proj; it has 1 layer,",
        ),
        (
            adapter({**LINEARS, "model.layers.0.mlp.x": LinearSize(16, 8)}),
            r"no linear for 1 module of the adapter: model\.layers\.0\.mlp\.x; it has q_proj, dow",
        ),
        (
            adapter({**LINEARS, "model.layers.0.mlp.experts.3.w1": LinearSize(8, 8)}),
            r"need lora_experts.* has: model\.layers\.0\.mlp\.experts\.3\.w1",
        ),
        (
            adapter({**LINEARS, Q.removeprefix("model."): LinearSize(8, 12)}),
            f"two pairs of matrices for {Q}",
        ),
        (with_down(Q, torch.ones(2, 9)), rf"{Q} \(A \[2, 9\] and B \[12, 2\], not \[rank, 8\] and"),
        (with_down(Q, torch.ones(3, 8)), rf"{Q} \(A \[3, 8\] and B \[12, 2\]"),
        (with_down(Q, torch.ones(16)), r"A \[16\]"),
        (adapter(rank=0), f"rank of 0 at {Q}, {DOWN}"),
        (replace(adapter(), rank=1), "says that its rank is 1; its largest is 2"),
        (adapter(rank=8), rf"rank of 8 is above 4, .*max_lora_rank.*: {Q} \(8\)"),
        (with_down(Q, torch.ones(2, 8).double()), rf"not {Q} \(A\) in torch\.float64"),
        (with_down(Q, torch.full((2, 8), torch.nan)), rf"not finite in {Q} \(A\)"),
        (with_down(Q, torch.full((2, 8), -torch.inf)), rf"not finite in {Q} \(A\)"),
        (with_down(Q, torch.eye(2, 8) / (1 - torch.eye(2, 8))), rf"not finite in {Q} \(A\)"),
        (replace(adapter(), scaling={Q: float("inf"), DOWN: 1.0}), f"scaling .* at {Q}$"),
    ],
)
def test_what_does_not_fit_is_named(given: Adapter, words: str) -> None:
    with pytest.raises(AdapterError, match=words):
        check_adapter(given, LINEARS, max_rank=4)


def test_what_its_config_lists_and_the_model_has_must_have_tensors() -> None:
    experts = {"model.layers.0.mlp.experts.gate_up_proj": LinearSize(32, 48, experts=4)}
    given = replace(adapter({Q: LINEARS[Q]}), targets=("self_attn.q_proj", "c_attn", ""))
    check_adapter(given, LINEARS)
    check_adapter(replace(given, targets=("q_proj", "gate_up_proj")), LINEARS | experts)
    for target in ("down_proj", "mlp.down_proj", DOWN, f"language_model.{DOWN}"):
        with pytest.raises(AdapterError, match=rf"that it changes {target}, which the model has"):
            check_adapter(replace(given, targets=("c_attn", target, "q_proj")), LINEARS)


def test_long_lists_are_cut_and_stay_on_one_line() -> None:
    names = {f"model.layers.0.x{number}\n": LinearSize(8, 8) for number in range(30)}
    with pytest.raises(AdapterError, match=r"x17 and 20 more; it has q_proj, down_proj") as caught:
        check_adapter(adapter({**LINEARS, **dict(sorted(names.items()))}), LINEARS)
    assert "\n" not in str(caught.value)


def test_a_name_of_very_many_parts_is_compared_at_once() -> None:
    """Its parts were taken off one by one once, each by moving all others: 10 s."""
    began = time.process_time()
    with pytest.raises(AdapterError, match="touches no linear"):
        check_adapter(adapter({"model." * 150_000 + "x": LinearSize(8, 8)}), LINEARS)
    assert time.process_time() - began < 3


@pytest.mark.parametrize("model", ["org/base", "ORG/Base", "/models/base", "base", "./models"])
def test_a_base_of_the_same_name_or_one_that_cannot_be_compared_is_taken(model: str) -> None:
    check_adapter(adapter(), LINEARS, model_names=[model])


def test_another_base_is_refused_unless_it_is_said_to_be_the_same() -> None:
    with pytest.raises(AdapterError, match="trained on 'org/Base', not on org/Other"):
        check_adapter(adapter(), LINEARS, model_names=["org/Other"])
    check_adapter(adapter(), LINEARS, model_names=["org/Other", "org/Base"])
    for trained_on in (None, "/home/me/run/base", "base"):
        check_adapter(replace(adapter(), base_model=trained_on), LINEARS, model_names=["org/Other"])
