"""DeepSeek V2 and V3 against Transformers, and the latent cache that they keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.hopper.backend import HopperAttention
from octavo_plugins.attention.paged.backend import PagedAttention
from octavo_plugins.attention.torch.backend import TorchAttention
from octavo_registry.cache import CacheSpec
from small_models import (
    Case,
    Checkpoint,
    assert_parts_equal_transformers,
    cases_of,
    run_stages,
)

VARIANTS = cases_of("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
V2: Case = ("DeepseekV2ForCausalLM", "queries as they are, experts anywhere")
V3: Case = ("DeepseekV3ForCausalLM", "experts in groups with a bias for the choice, yarn")

each_variant = pytest.mark.parametrize("case", VARIANTS, ids=", ".join)


@each_variant
def test_stages_and_ranks_equal_the_whole_of_transformers(case: Case, tmp_path: Path) -> None:
    assert_parts_equal_transformers(case, VARIANTS[case], tmp_path)


@pytest.mark.parametrize("case", [V2, V3], ids=lambda case: case[0])
def test_the_cache_has_one_key_a_token_and_nothing_else(case: Case, tmp_path: Path) -> None:
    specs = set(Checkpoint(case, VARIANTS[case], tmp_path).model().cache_specs().values())
    assert specs == {CacheSpec.latent(key_dim=48, value_dim=40, dtype="float32")}
    assert TorchAttention().page_bytes(specs.pop(), 16) == 16 * 48 * 4


def test_layers_that_predict_further_ahead_are_left_in_the_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint(V3, VARIANTS[V3], tmp_path)
    checkpoint.tensors["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)
    checkpoint.check(run_stages([checkpoint.loaded()]))
    checkpoint.tensors["model.layers.4.eh_proj.weight"] = torch.zeros(64, 128)
    with pytest.raises(ModelError, match=r"model\.layers\.4\.eh_proj\.weight"):
        checkpoint.loaded()


@pytest.mark.parametrize(
    ("case", "entry", "value"),
    [
        (V2, "norm_topk_prob", True),
        (V2, "topk_method", "noaux_tc"),
        (V3, "scoring_func", "softmax"),
        (V3, "moe_layer_freq", 2),
    ],
)
def test_config_values_that_would_change_the_result_are_refused(
    case: Case, entry: str, value: object, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(case, VARIANTS[case], tmp_path)
    checkpoint.config[entry] = value
    with pytest.raises(ModelError, match=f"{entry}={value!r} in config.json is not known"):
        checkpoint.model()


LATENT = {"key_dim": 12, "value_dim": 8}
STEPS: Sequence[list[tuple[int, int]]] = (
    [(0, 9)],
    [(1, 300), (2, 1)],
    [(0, 1), (1, 1), (2, 1)],
    [(2, 1)],
    [(2, 5), (0, 1), (1, 7)],
)


def check_attention(dtype: torch.dtype, device: str, *, sinks: bool = False) -> None:
    """Prefill, decode and both at once, against attention over keys and copies of their parts."""
    torch.manual_seed(0)
    heads, key_dim, value_dim = 3, LATENT["key_dim"], LATENT["value_dim"]
    spec = CacheSpec.latent(**LATENT, dtype=str(dtype).removeprefix("torch."))
    backend = TorchAttention()
    assert backend.supports(spec, torch.device(device)) is None
    builder = StepBuilder({"layer": spec}, backend, device=device)
    keys = [torch.zeros(0, key_dim, dtype=dtype, device=device) for _ in range(3)]
    for _ in keys:
        builder.add_row()
    sinks_H = torch.randn(heads, device=device) if sinks else None
    for rows in STEPS:
        step = builder.step(rows)
        q_THD = torch.randn(step.num_tokens, heads, key_dim, device=device).to(dtype)
        k_TKD = torch.randn(step.num_tokens, 1, key_dim, device=device).to(dtype)
        layer = step.layers["layer"]
        found_THD = backend.attend(
            q_THD, k_TKD, None, layer.view, step.groups[0], scale=0.5, sinks=sinks_H
        )
        assert found_THD.shape == (step.num_tokens, heads, value_dim)
        expected, first = [], 0
        for row, count in rows:
            keys[row] = torch.cat((keys[row], k_TKD[first : first + count, 0]))
            expected.append(attended(q_THD[first : first + count], keys[row], value_dim, sinks_H))
            first += count
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(
            found_THD.double(), torch.cat(expected), atol=tolerance, rtol=tolerance
        )


def attended(q_QHD: Tensor, keys_CD: Tensor, value_dim: int, sinks_H: Tensor | None) -> Tensor:
    num_queries, num_keys = len(q_QHD), len(keys_CD)
    scores_HQC = 0.5 * torch.einsum("qhd,cd->hqc", q_QHD.double(), keys_CD.double())
    hidden_QC = torch.ones(num_queries, num_keys, device=q_QHD.device).triu(
        num_keys - num_queries + 1
    )
    scores_HQC = scores_HQC.masked_fill(hidden_QC.bool(), -torch.inf)
    if sinks_H is not None:
        sinks_HQ1 = sinks_H.double().view(-1, 1, 1).expand(-1, num_queries, 1)
        scores_HQC = torch.cat((scores_HQC, sinks_HQ1), dim=-1)
    weights_HQC = scores_HQC.softmax(-1)[..., :num_keys]
    return torch.einsum("hqc,cd->qhd", weights_HQC, keys_CD[:, :value_dim].double())


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_the_beginnings_of_keys(dtype: torch.dtype, sinks: bool) -> None:
    check_attention(dtype, "cpu", sinks=sinks)


@pytest.mark.gpu
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_the_beginnings_of_keys_on_a_gpu(dtype: torch.dtype, sinks: bool) -> None:
    check_attention(dtype, "cuda:0", sinks=sinks)


@pytest.mark.parametrize("backend", [HopperAttention(), PagedAttention()])
def test_backends_that_store_values_refuse_a_latent_cache_by_name(
    backend: HopperAttention | PagedAttention,
) -> None:
    spec = CacheSpec.latent(key_dim=576, value_dim=512, dtype="bfloat16")
    reason = backend.supports(spec, torch.device("cuda:0"))
    assert reason is not None
    assert "kind='latent' is not known" in reason


@pytest.mark.parametrize("value_dim", [0, 9])
def test_a_value_that_is_no_part_of_its_key_is_refused(value_dim: int) -> None:
    with pytest.raises(ValueError, match=f"value_dim={value_dim} must be between 1 and key_dim=8"):
        CacheSpec.latent(key_dim=8, value_dim=value_dim, dtype="float32")
