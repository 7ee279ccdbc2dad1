from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.testing.step_building import StepBuilder
from octavo_plugins.attention.dense import backend as dense
from octavo_plugins.attention.dense.backend import DenseAttention
from octavo_registry.cache import CacheSpec
from octavo_registry.errors import PluginError
from small_models import TEXT_MODELS, TOKENS, Checkpoint, cases_of, run_stages

FIRST = {case[0]: (case, variant) for case, variant in reversed(cases_of(*TEXT_MODELS).items())}
HEADS = {"kv_heads": 2, "head_dim": 8, "dtype": "float32"}
SPECS = {
    "before": CacheSpec.in_step(**HEADS),
    "all": CacheSpec.in_step(sees="all", **HEADS),
    "window": CacheSpec.in_step(window=3, **HEADS),
    "window to both sides": CacheSpec.in_step(sees="all", window=3, **HEADS),
}


def attend(spec: CacheSpec, lengths: list[int], qkv: list[Tensor], **keywords: Any) -> Tensor:
    backend = DenseAttention()
    builder = StepBuilder({"layer": spec}, backend)
    step = builder.step([(builder.add_row(), length) for length in lengths])
    keywords = {"causal": spec.sees == "before", "window": spec.window, **keywords}
    return backend.attend(*(x.clone() for x in qkv), None, step.groups[0], scale=0.3, **keywords)


def random_rows(lengths: list[int]) -> list[list[Tensor]]:
    torch.manual_seed(0)
    return [[torch.randn(n, heads, 8) for heads in (4, 2, 2)] for n in lengths]


@pytest.mark.parametrize("architecture", FIRST)
def test_each_decoder_of_the_framework_runs_without_a_cache(architecture: str, tmp_path) -> None:
    checkpoint = Checkpoint(*FIRST[architecture], tmp_path)
    checkpoint.check(run_stages([checkpoint.loaded(sees="before")], DenseAttention()))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_decoders_see_both_directions_unchanged(architecture: str, tmp_path) -> None:
    case, variant = FIRST[architecture]
    checkpoint = Checkpoint(case, variant, tmp_path)
    reference, window = checkpoint.reference.module, checkpoint.config.get("sliding_window")
    places_T = torch.arange(len(TOKENS))
    sees_TT = torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool)
    near_TT = sees_TT if window is None else (places_T[:, None] - places_T).abs() < window
    assert window is None or not near_TT.all()
    masks = [
        torch.zeros(1, 1, *seen_TT.shape).masked_fill_(~seen_TT, -torch.inf)
        for seen_TT in (sees_TT, near_TT)
    ]
    mask = masks[0]
    if window is not None:
        mask = dict(zip(("full_attention", "sliding_attention"), masks, strict=True))
    with torch.inference_mode():
        expected_TV = reference(torch.tensor([TOKENS]), attention_mask=mask).logits[0]
    found_TV = run_stages([checkpoint.loaded(sees="all")], DenseAttention())
    torch.testing.assert_close(
        found_TV.log_softmax(-1), expected_TV.log_softmax(-1), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("keywords", [{}, {"softcap": 2.0}], ids=["fused", "plain"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_row_is_the_same_alone_and_anywhere_among_others(spec, keywords, monkeypatch) -> None:
    monkeypatch.setattr(dense, "MAX_NUMBERS", 100)  # so that queries are taken some at a time
    lengths = [5, 9, 5, 1, 9, 9, 1, 12]
    rows = random_rows(lengths)
    alone = [attend(spec, [n], row, **keywords) for n, row in zip(lengths, rows, strict=True)]
    for order in (range(8), [3, 6, 0, 2, 1, 4, 5, 7], range(7, -1, -1)):
        qkv = [torch.cat([rows[i][part] for i in order]) for part in range(3)]
        found = attend(spec, [lengths[i] for i in order], qkv, **keywords)
        expected = torch.cat([alone[i] for i in order])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_window_to_both_sides_hides_what_is_as_far_away_as_it_is_long() -> None:
    (qkv,) = random_rows([7])
    changed = [qkv[0], *(x.clone() for x in qkv[1:])]
    for x in changed[1:]:
        x[3] += 1.0
    spec = SPECS["window to both sides"]
    differs_T = (attend(spec, [7], qkv) != attend(spec, [7], changed)).any(dim=(1, 2))
    assert differs_T.tolist() == [False, True, True, True, True, True, False]


@pytest.mark.parametrize(
    "keywords",
    [{"causal": False}, {"window": 2}, {"k_TKD": None}],
    ids=lambda each: next(iter(each)),
)
def test_what_a_layers_spec_does_not_say_is_refused(keywords) -> None:
    (qkv,) = random_rows([4])
    if "k_TKD" in keywords:
        backend = DenseAttention()
        builder = StepBuilder({"layer": SPECS["before"]}, backend)
        group = builder.step([(builder.add_row(), 4)]).groups[0]
        with pytest.raises(PluginError, match="no keys but its own"):
            backend.attend(qkv[0], None, None, None, group, scale=1.0)
        return
    with pytest.raises(PluginError, match="are not what the layer's CacheSpec says"):
        attend(SPECS["before"], [4], qkv, **keywords)
