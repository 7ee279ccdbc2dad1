"""What steps allocate beside weights and cache: an upper formula, so that no trial step is run.

Measured on an H200 with steps of 8192 tokens in bfloat16, it is 6 to 12 % above the real peak of
dense models, of experts, and of latent attention; tests hold it to 15 %. Layers add to the residual
stream in place and free what they made, so that a forward takes what its widest layer does::

    forward   = tokens * (3 hidden + the larger of
                    attention:    2 (heads + kv_heads) head_dim
                    feed forward: 3 intermediate, or chosen experts (hidden + intermediate))
    logits    = rows * vocabulary + tokens * hidden, and 256 MiB to choose tokens by them
    workspace = the larger of the two, and 48 MiB that libraries keep
              + the same of recorded decode steps, which have memory of their own

in elements of the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

MIB: Final = 1024**2
SAMPLER_BYTES: Final = 256 * MIB
"""Scratch that ``octavo_kernels.sample`` and log probabilities keep below on an accelerator."""
LIBRARY_BYTES: Final = 48 * MIB
"""Of cuBLAS 32 for each stream that it is called on (Hopper), of our kernels up to 16."""
LATENT_BYTES: Final = 512 * MIB
"""What the ``torch`` attention backend keeps below for latent caches: scores, and weights."""
INPUT_BYTES: Final = 1024
"""Of a token: its id, places and angles."""

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

    def peak(num_tokens: int, num_rows: int) -> int:
        logits = num_tokens * hidden_bytes + num_rows * row_bytes + SAMPLER_BYTES
        return max(forward(num_tokens), logits) + LIBRARY_BYTES

    launched = peak(num_tokens, num_logit_rows)
    return launched + (peak(num_recorded_rows, num_recorded_rows) if num_recorded_rows else 0)


def forward_formula(config: Mapping[str, Any], *, item_bytes: int, tp_size: int) -> ForwardBytes:
    """By the entries of config.json that most architectures have."""

    def entry(*names: str, default: int = 0) -> int:
        found = (config.get(name) for name in names)
        return next((value for value in found if isinstance(value, int) and value > 0), default)

    hidden = entry("hidden_size", "n_embd", default=4096)
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
    feed_forward = max(3 * ffn // tp_size, chosen * (hidden + expert_ffn // tp_size))
    per_token = item_bytes * (3 * hidden + max(attention // tp_size, feed_forward))

    def forward(num_tokens: int) -> int:
        scratch = max(num_tokens * latent_copies, LATENT_BYTES) if latent_dim else 0
        return num_tokens * (per_token + INPUT_BYTES) + scratch

    return forward
