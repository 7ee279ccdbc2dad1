"""Adapters of latent attention: kv_b_proj is multiplied into others, rotated entries change places.

That they equal merged weights and PEFT is in ``test_adapters_models``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.adapters.packed import pack
from octavo.layers.adapted import MASK_BYTES, AdapterRows, AdapterSpans
from octavo.layers.adapted_latent import AdaptedLatent
from octavo.steps.loads import AdapterLoad, Span
from octavo.testing.adapters import RANKS, random_adapter, with_adapters
from octavo.testing.model import make_trial
from octavo.testing.modes import Trial, in_a_batch, with_warm_prefix_cache
from plan_equality import check_plan
from small_models import HOST, Checkpoint, cases_of

VARIANTS = cases_of("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
V2 = ("DeepseekV2ForCausalLM", "queries as they are, experts anywhere")
V3 = ("DeepseekV3ForCausalLM", "experts in groups with a bias for the choice, yarn")
HEADS, LATENT = 4, 40

each_version = pytest.mark.parametrize("case", [V2, V3], ids=lambda case: case[0])


@pytest.fixture(scope="module", params=[V2, V3], ids=lambda case: case[0])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("latent")
    plain = make_trial(HOST, request.param[0], VARIANTS[request.param], folder)
    return with_adapters(plain, RANKS, num_rank_rows=sum(RANKS))


@each_version
def test_all_linears_of_latent_attention_can_be_changed(
    case: tuple[str, str], tmp_path: Path
) -> None:
    linears = Checkpoint(case, VARIANTS[case], tmp_path).linears()
    names = {name.rpartition(".")[2] for name in linears}
    queries = {"q_a_proj", "q_b_proj"} if case == V3 else {"q_proj"}
    assert names == {
        *queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
        "gate_proj", "up_proj", "down_proj", "gate", "gate_up_proj", "embed_tokens", "lm_head",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", [
    lambda trial: in_a_batch(trial, max_num_batched_tokens=7),
    with_warm_prefix_cache,
], ids=["chunks", "prefixes"])  # fmt: skip
def test_chunks_and_cached_prefixes_equal_merged_weights(
    mode: Callable[[Trial], object], trial: Trial
) -> None:
    comparison = mode(trial)
    assert comparison.passed, comparison.as_text()


def as_it_is(self: AdaptedLatent, product: Tensor, other: Tensor) -> Tensor:
    return product


def of_all_rows(self: AdaptedLatent, product: Tensor, other: Tensor) -> Tensor:
    down_HLP = self.down_PL.mT.expand(len(other), -1, -1)
    values_HPV = self.up_PHB[..., self.query_dim :].transpose(0, 1)
    return product.baddbmm_(torch.bmm(other, down_HLP), values_HPV)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "method", "mistake"),
    [
        (AdaptedLatent, "add_to_queries_", as_it_is),
        (AdaptedLatent, "add_to_values_", as_it_is),
        (AdaptedLatent, "add_to_values_", of_all_rows),
        (AdapterRows, "reorder", lambda self, name, order_O: None),
    ],
    ids=["keys", "values", "others", "rotated entries"],
)
def test_the_kit_notices_what_is_left_out(
    owner: type, method: str, mistake: object, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, mistake)
    assert not in_a_batch(trial).passed


@each_version
def test_without_an_adapter_of_kv_b_proj_in_the_pool_nothing_is_multiplied(
    case: tuple[str, str], tmp_path: Path
) -> None:
    rows = AdapterRows(32, 8)
    checkpoint = Checkpoint(case, VARIANTS[case], tmp_path)
    model = checkpoint.loaded(adapters=rows)
    whole = random_adapter(checkpoint.reference, rows.linears, rank=4, seed=0)
    adapters = model.model.layers["0"].self_attn._adapters
    product, other = torch.zeros(HEADS, 2, 12), torch.ones(HEADS, 2, LATENT)

    def is_changed(*ends: str) -> bool:
        some = {name: size for name, size in rows.linears.items() if name.endswith(ends)}
        part = {
            name: {n: getattr(whole, name)[n] for n in some} for name in ("down", "up", "scaling")
        }
        rows.load(AdapterLoad(Span(8, 4), pack(replace(whole, **part), "float32")))
        firsts, ranks = (torch.tensor(it, dtype=torch.int32) for it in ([8, 0], [4, 0]))
        rows.begin(AdapterSpans(firsts, ranks, rows.sites))
        adapters.add_to_values_(product.zero_(), other)
        assert not product[:, 1].any()  # of the token that has no adapter
        return bool(product[:, 0].all())

    assert is_changed("kv_b_proj")
    assert rows.sites == {"linear", "latent"}
    assert not is_changed("o_proj")
    assert rows.sites == {"linear"}
    assert is_changed("kv_b_proj")
    rows.end()
    assert not adapters.add_to_values_(product.zero_(), other).any()


def test_a_row_of_another_adapter_that_overflows_does_no_harm(tmp_path: Path) -> None:
    rows = AdapterRows(2, 1)
    model = Checkpoint(V2, VARIANTS[V2], tmp_path).loaded(adapters=rows)
    attention = model.model.layers["0"].self_attn
    attention.adapter_down_PQI[1] = torch.inf
    attention.adapter_up_PO[:] = 1.0
    attention.adapter_down_PQI[0] = 1.0
    firsts, ranks = (torch.tensor(it, dtype=torch.int32) for it in ([0], [1]))
    rows.begin(AdapterSpans(firsts, ranks, frozenset(("linear", "latent"))))
    values = attention._adapters.add_to_values_(
        torch.zeros(HEADS, 1, 12), torch.ones(HEADS, 1, LATENT)
    )
    assert torch.equal(values, torch.full_like(values, LATENT))


@each_version
def test_a_plan_counts_the_rank_rows(case: tuple[str, str], tmp_path: Path) -> None:
    Checkpoint(case, VARIANTS[case], tmp_path)
    options = {"enable_lora": True, "lora_pool_rank": 40}
    check_plan(tmp_path, HOST, **options)
    check_plan(tmp_path, HOST, lora_experts=True, **options)


def test_the_sums_of_all_heads_are_planned(tmp_path: Path) -> None:
    rows = AdapterRows(4096, 1)
    checkpoint = Checkpoint(V2, VARIANTS[V2], tmp_path)
    checkpoint.model(device=torch.device("meta"), adapters=rows)
    assert rows.sums_bytes(100) == 100 * 4096 * (4 * HEADS + MASK_BYTES)
