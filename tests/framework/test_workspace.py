from __future__ import annotations

from typing import Any

import pytest

from octavo.execution.workspace import (
    INPUT_BYTES,
    LATENT_BYTES,
    LIBRARY_BYTES,
    SAMPLER_BYTES,
    forward_formula,
    workspace_bytes,
)

DENSE = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
ONE_TOKEN = 3 * 64 + 3 * 160


def elements(config: dict[str, Any], *, tp_size: int = 1) -> int:
    """What one more token takes, but for inputs."""
    forward = forward_formula(config, item_bytes=2, tp_size=tp_size)
    many = 2**20
    return (forward(many + 1) - forward(many) - INPUT_BYTES) // 2


def workspace(**changes: int) -> int:
    options = {
        "num_tokens": 1000,
        "num_logit_rows": 10,
        "num_recorded_rows": 0,
        "hidden_bytes": 128,
        "row_bytes": 2000,
    }
    return workspace_bytes(lambda num_tokens: 10**6 * num_tokens, **{**options, **changes})


def test_a_forward_takes_what_its_widest_layer_does() -> None:
    assert elements(DENSE) == ONE_TOKEN
    assert elements({**DENSE, "num_attention_heads": 16}) == 3 * 64 + 2 * (16 + 2) * 16
    assert elements({**DENSE, "num_experts_per_tok": 8, "moe_intermediate_size": 32}) == (
        3 * 64 + 8 * (64 + 32)
    )


def test_gates_that_are_fused_take_nothing_in_long_steps() -> None:
    apart = forward_formula(DENSE, item_bytes=2)
    fused = forward_formula(DENSE, item_bytes=2, fused_from=100)
    assert [fused(n) == apart(n) for n in (1, 99, 100, 101)] == [True, True, True, False]
    attention = 2 * (4 + 2) * 16
    assert fused(10_000) == 10_000 * (2 * (3 * 64 + attention) + INPUT_BYTES)
    assert fused(101) == 100 * 2 * ONE_TOKEN + 101 * INPUT_BYTES  # the longest with gates counts


def test_a_result_that_is_added_in_place_takes_nothing() -> None:
    apart = forward_formula(DENSE, item_bytes=2)
    in_place = forward_formula(DENSE, item_bytes=2, adds_in_place=True)
    assert apart(1000) - in_place(1000) == 1000 * 2 * 64


def test_older_names_of_the_same_sizes_are_known() -> None:
    gpt2 = {"n_embd": 64, "n_inner": 160, "n_head": 4}
    assert elements(gpt2) == ONE_TOKEN
    assert elements({"n_embd": 64, "n_inner": None, "n_head": 4}) == 3 * 64 + 3 * 4 * 64
    opt = {"hidden_size": 64, "ffn_dim": 160, "num_attention_heads": 4}
    assert elements(opt) == ONE_TOKEN


def test_ranks_share_all_but_hidden_states() -> None:
    assert elements(DENSE, tp_size=2) == 3 * 64 + 3 * 160 // 2


def test_latent_attention_copies_queries_or_makes_the_scores_of_long_prompts() -> None:
    latent = {**DENSE, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    queries, copies = 4 * (24 + 48 + 40), 4 * 48 * 5
    assert elements(latent) == 3 * 64 + max(queries, 3 * 160) + copies
    assert forward_formula(latent, item_bytes=2, tp_size=1)(1) > LATENT_BYTES


def test_logits_and_activations_are_not_there_at_a_time() -> None:
    assert workspace() == 10**9 + LIBRARY_BYTES
    many_rows = workspace(num_logit_rows=10**6)
    assert many_rows == 1000 * 128 + 10**6 * 2000 + SAMPLER_BYTES + LIBRARY_BYTES


@pytest.mark.parametrize("rows", [1, 1000])
def test_recorded_steps_have_memory_of_their_own(rows) -> None:
    more = workspace(num_recorded_rows=rows) - workspace()
    assert more == rows * (10**6 + 2128) + SAMPLER_BYTES + LIBRARY_BYTES
