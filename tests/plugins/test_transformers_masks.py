"""A model run by Transformers' code gets the mask that it asks for, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import masking_utils

from octavo.config import ModelConfig
from octavo.errors import ModelError
from octavo.model_folder import open_model
from octavo.testing.random_model import make_random_model
from octavo.weights.load import load_model
from octavo_plugins.models.transformers.attention import AskedMask
from octavo_plugins.models.transformers.model import TransformersModel
from octavo_registry import PluginHost
from octavo_registry.model import ModelSpec

ONES = torch.ones(1, 1, 4, 4)
MAKE = masking_utils.create_causal_mask


def asked_mask() -> AskedMask:
    return AskedMask(lambda *places: None, num_queries=4, num_keys=4)


@pytest.mark.parametrize(
    "cut",
    [
        lambda mask: mask[:, :, :, :4],
        lambda mask: mask[..., :9],
        lambda mask: mask[:],
        lambda mask: mask[:, :, -4:],
        lambda mask: mask[0:1, ..., 0:4],
    ],
)
def test_a_mask_cut_to_the_length_of_the_keys_is_the_same(cut) -> None:
    mask = asked_mask()
    assert cut(mask) is mask


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: mask & ONES.bool(),
        lambda mask: ONES.bool() & mask,
        lambda mask: mask + ONES,
        lambda mask: ONES + mask,
        lambda mask: 1 - mask,
        lambda mask: ~mask,
        lambda mask: mask == 0,
        lambda mask: torch.where(mask, ONES, ONES),
        lambda mask: ONES.masked_fill(mask, 0),
        lambda mask: mask.to(torch.bool),
        lambda mask: mask.shape[-1],
        lambda mask: hasattr(mask, "dtype"),
        lambda mask: mask[:, 0],
        lambda mask: mask[..., :3],
        lambda mask: mask[..., ::2],
        lambda mask: mask[:, :, :, :, None],
        lambda mask: mask[ONES > 0],
        lambda mask: ONES[mask],
        lambda mask: bool(mask),
        lambda mask: list(mask),
        lambda mask: mask.__setitem__(0, 1),
    ],
)
def test_whatever_else_a_model_does_with_its_mask_is_refused(change) -> None:
    with pytest.raises(ModelError, match="changes the attention mask that it has asked for"):
        change(asked_mask())


def specs_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make_mask: Callable[..., Any]
) -> dict[str, Any]:
    """Of a Llama of Transformers whose code makes its mask so."""
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", make_mask)
    host = PluginHost.discover()
    config = ModelConfig(model=str(make_random_model(folder)), model_impl="transformers")
    opened = open_model(config, host)
    model: Any = load_model(opened, host, config=config, device=torch.device("cpu"))
    specs: dict[str, Any] = model.cache_specs()
    return specs


def test_a_window_that_code_asks_for_is_kept(tmp_path, monkeypatch) -> None:
    def make_mask(**given: Any) -> Any:
        overlay = masking_utils.sliding_window_overlay(20)
        return MAKE(**given, and_mask_function=overlay)

    specs = specs_of(tmp_path, monkeypatch, make_mask)
    assert [spec.window for spec in specs.values()] == [20, 20]


def strided(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """All keys but for a few queries, which no sample of them would be likely to hit."""
    return (query % 333 != 77) | (key % 2 == 0)


@pytest.mark.parametrize(
    ("make_mask", "reason"),
    [
        (lambda **given: MAKE(**given) & ONES.bool(), "its code changes the attention mask"),
        (lambda **given: MAKE(**given)[:, :, :2], "its code changes the attention mask"),
        (lambda **given: ONES, "makes an attention mask of its own"),
        (lambda **given: MAKE(**given, and_mask_function=strided), "a mask that is not causal"),
        (
            lambda **given: MAKE(**given, or_mask_function=lambda b, h, query, key: key < 3),
            "a mask that is not causal",
        ),
    ],
    ids=["a choice of keys", "some queries", "of its own", "strided", "first tokens for all"],
)
def test_a_model_that_asks_for_another_mask_is_refused(
    tmp_path, monkeypatch, make_mask, reason
) -> None:
    with pytest.raises(ModelError, match=f"LlamaForCausalLM cannot be run .*: .*{reason}"):
        specs_of(tmp_path, monkeypatch, make_mask)


def test_sparse_attention_of_the_library_is_refused_for_its_mask() -> None:
    spec = ModelSpec(
        architecture="DeepseekV32ForCausalLM",
        config={
            "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "first_k_dense_replace": 2,
            "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
            "v_head_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 2,
            "max_position_embeddings": 64, "pad_token_id": 0,
        },
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_model_len=64,
    )  # fmt: skip
    with pytest.raises(ModelError, match="its code changes the attention mask"):
        TransformersModel(spec).cache_specs()
