"""What steps allocate beside weights and cache: an upper formula, so that no trial step is run.

Measured on an H200 with steps of 8192 tokens in bfloat16, it is 3 to 14 % above the real peak of
dense models, of experts, and of latent attention; tests hold it to 15 %. Layers free what they
made, so that a forward takes what its widest layer does beside the residual stream, a norm of it,
and a result, which dense layers of the usual kind add to the stream as they compute it::

    forward   = tokens * (3 hidden, or 2 where results are added in place + the largest of
                    attention:    2 (heads + kv_heads) head_dim
                    feed forward: intermediate, and gates and ups where they are not fused,
                                  or chosen experts (hidden + intermediate))
    logits    = rows * vocabulary + tokens * hidden, and 256 MiB to choose tokens by them
    workspace = the larger of the two, and 48 MiB that libraries keep

in elements of the model's dtype. Recorded decode steps have memory of their own, for both. What the
allocator holds is up to 250 MiB more, which it gives back when there is no other memory left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

MIB: Final = 1024**2
SAMPLER_BYTES: Final = 256 * MIB
"""Scratch that ``octavo_kernels.sample`` and log probabilities keep below on an accelerator."""
LIBRARY_BYTES: Final = 48 * MIB
"""cuBLAS has 32 for each stream that it is called on (Hopper), our kernels up to 16."""
LATENT_BYTES: Final = 512 * MIB
"""What the ``torch`` attention backend keeps below for latent caches: scores, and weights."""
INPUT_BYTES: Final = 1024
"""A token's id, places and angles."""

ForwardBytes = Callable[[int], int]
"""Peak scratch of a forward over so many tokens."""


def workspace_bytes(
    forward: ForwardBytes,
    *,
    num_tokens: int,
    num_logit_rows: int,
    num_recorded_rows: int,
    hidden_bytes: int,
    row_bytes: int,
) -> int:
    """For steps of so many tokens; 0 rows are recorded where steps are launched one by one.

    ``hidden_bytes`` are those of one token's hidden state, ``row_bytes`` of one row of logits.
    """

    def logits(num_tokens: int, num_rows: int) -> int:
        return num_tokens * hidden_bytes + num_rows * row_bytes + SAMPLER_BYTES

    launched = max(forward(num_tokens), logits(num_tokens, num_logit_rows)) + LIBRARY_BYTES
    if not num_recorded_rows:
        return launched
    # What a recording has freed is cut into pieces that are never joined, so both count.
    recorded = forward(num_recorded_rows) + logits(num_recorded_rows, num_recorded_rows)
    return launched + recorded + LIBRARY_BYTES


def forward_formula(
    config: Mapping[str, Any],
    *,
    item_bytes: int,
    tp_size: int = 1,
    expert_copies: int = 1,
    feed_forward_copies: int = 3,
    fused_from: int | None = None,
    adds_in_place: bool = False,
) -> ForwardBytes:
    """A forward's bytes by the entries of config.json that most architectures have.

    ``expert_copies`` are the hidden states that are kept for each pair of token and expert,
    ``feed_forward_copies`` the tensors as wide as a feed forward: gates, ups and their product,
    which from ``fused_from`` tokens on is alone. ``adds_in_place`` says that no layer's result is
    ever a tensor beside the residual stream.
    """

    def entry(*names: str, default: int = 0) -> int:
        return first_entry(config, *names, default=default)

    hidden = hidden_size(config)
    heads = entry("num_attention_heads", "n_head", default=32)
    kv_heads = entry("num_key_value_heads", default=heads)
    head_dim = entry("head_dim", default=hidden // heads)
    attention, latent_copies = 2 * (heads + kv_heads) * head_dim, 0
    latent_dim = entry("kv_lora_rank")
    if latent_dim:
        rotary_dim = entry("qk_rope_head_dim")
        query_dim, key_dim = entry("qk_nope_head_dim") + rotary_dim, latent_dim + rotary_dim
        attention = heads * (query_dim + key_dim + latent_dim)  # queries, those of keys, results
        latent_copies = heads * key_dim // tp_size * (item_bytes + 4 + 4)  # in float32, and scaled
    ffn = entry("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    expert_ffn = entry("moe_intermediate_size", default=ffn)
    chosen = entry("num_experts_per_tok")
    experts = chosen * (expert_copies * hidden + expert_ffn // tp_size)
    beside = (2 if adds_in_place else 3) * hidden
    widest = beside + max(attention // tp_size, experts, ffn // tp_size)
    with_gates = max(widest, beside + feed_forward_copies * ffn // tp_size)

    def forward(num_tokens: int) -> int:
        most_gates = num_tokens if fused_from is None else min(num_tokens, fused_from)
        entries = max(num_tokens * widest, most_gates * with_gates)
        scratch = max(num_tokens * latent_copies, LATENT_BYTES) if latent_dim else 0
        return item_bytes * entries + num_tokens * INPUT_BYTES + scratch

    return forward


def hidden_size(config: Mapping[str, Any]) -> int:
    """Entries of a hidden state; a guess where config.json has a name of its own for it."""
    return first_entry(config, "hidden_size", "n_embd", "d_model", default=4096)


def first_entry(config: Mapping[str, Any], *names: str, default: int) -> int:
    """The first of these entries that is a positive number."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), default)
