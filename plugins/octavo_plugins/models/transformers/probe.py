"""Shows, before a model serves, that all its exchange between tokens goes through our attention.

Each layer must call attention once, and ask for a causal mask, with or without a window. The model
is then run with an attention in which every token sees itself only. A token's result must now
follow from that token and its position, so: a NaN in one token may show in no other, and the order
and company of tokens may change nothing. Whatever passes gives packed rows and chunks of a prompt
what it would give each row alone and whole, as far as the attention backend does.

Axis suffixes: T tokens, D hidden or head dim, H query heads, K key/value heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo_plugins.models.transformers.attention import AskedMask, AttentionCall, Handler

TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Share of the largest value: rows of one product may be rounded differently; a wrong position is
more than that."""


NUM_SEEN_WHOLE: Final = 1024
"""First tokens whose mask among themselves is looked at entry by entry; of the rest, a few rows:
all keys of so many queries would be seconds a layer in a context of 128k."""


class Probed(Protocol):
    """What is run."""

    def hidden(self, x_TD: Tensor, positions_T: Tensor, handler: Handler) -> Tensor:
        """The model without its head."""
        ...

    def whole(self, tokens_T: Tensor, positions_T: Tensor, handler: Handler) -> Tensor:
        """The whole model as Transformers runs it, from ids to logits."""
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """The head."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A layer's call."""

    layer: nn.Module
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    call: AttentionCall


class Alone:
    """An attention in which each token sees itself only; takes note of calls and results."""

    def __init__(self) -> None:
        self.calls: list[SeenCall] = []
        self.outputs: list[Tensor] = []

    def attend(
        self, layer: nn.Module, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall
    ) -> Tensor:
        """Give what depends on all of the token's query, key and value."""
        kv_heads, head_dim = k_TKD.shape[1:]
        seen = SeenCall(
            layer=layer, kv_heads=kv_heads, head_dim=head_dim, dtype=k_TKD.dtype, call=call
        )
        self.calls.append(seen)
        out_THD = q_THD + (k_TKD + v_TKD).repeat_interleave(q_THD.shape[1] // kv_heads, dim=1)
        self.outputs.append(out_THD)
        return out_THD


def check_calls(calls: Sequence[SeenCall], num_layers: int) -> None:
    """Each layer calls once: what it does besides would keep no cache."""
    layers = {call.layer for call in calls}
    if len(calls) != num_layers or len(layers) != num_layers:
        raise ModelError(
            f"its {num_layers} layers call attention {len(calls)} times, from {len(layers)} places"
        )


def window_of(call: AttentionCall, max_model_len: int) -> int | None:
    """The tokens that the layer lets a query see, itself included; None for all before it."""
    given = _short(call.window, max_model_len)
    if call.mask is None:
        if not call.is_causal:
            raise ModelError("a layer's attention is not causal")
        return given
    asked = _short(_window_of_mask(call.mask, max_model_len), max_model_len)
    if call.window is not None and given != asked:
        raise ModelError(f"a layer has a window of {given} and asks for a mask with {asked}")
    return asked


def _short(window: int | None, max_model_len: int) -> int | None:
    return None if window is None or window >= max_model_len else window


def _window_of_mask(mask: AskedMask, length: int) -> int:
    """Look at the last query; others tell a window from chunks and from what is not causal."""
    keys_T = torch.arange(length)
    zero = torch.zeros((), dtype=torch.int64)

    def allowed(queries_Q: Tensor, keys_K: Tensor) -> Tensor:
        allowed_QK: Tensor = mask.allows(zero, zero, queries_Q.unsqueeze(-1), keys_K)
        return allowed_QK.expand(len(queries_Q), len(keys_K))

    window = int(allowed(keys_T[-1:], keys_T).sum())
    few = {0, length // 2, max(length - 2, 0), length - 1, min(window, length - 1)}
    first_K = keys_T[:NUM_SEEN_WHOLE]
    for queries_Q, keys_K in ((first_K, first_K), (torch.tensor(sorted(few)), keys_T)):
        ages_QK = queries_Q.unsqueeze(-1) - keys_K
        if not torch.equal(allowed(queries_Q, keys_K), (ages_QK >= 0) & (ages_QK < window)):
            raise ModelError("a layer asks for a mask that is not causal with or without a window")
    return window


def check_tokens_are_apart(model: Probed, tokens_T: Tensor, x_TD: Tensor, last: int) -> None:
    """Run the model on a few tokens, in every way in which one could depend on another.

    ``x_TD`` are the tokens' embeddings, ``last`` is the last position that there will be.
    """
    positions_T = torch.arange(len(x_TD), device=x_TD.device)
    _check_head(model, x_TD, tokens_T, positions_T)
    _check_nan_stays(model, x_TD, positions_T)
    _check_positions(model, x_TD, positions_T, last)


def _check_head(model: Probed, x_TD: Tensor, tokens_T: Tensor, positions_T: Tensor) -> None:
    """Embedding, layers and head, one by one, are the whole model."""
    logits_TV = model.logits(model.hidden(x_TD, positions_T, Alone()))
    if not _close(logits_TV, model.whole(tokens_T, positions_T, Alone()), x_TD.dtype):
        raise ModelError("its layers or its head depend on more than hidden states and positions")


def _check_nan_stays(model: Probed, x_TD: Tensor, positions_T: Tensor) -> None:
    clean_T = torch.zeros(len(x_TD), dtype=torch.bool, device=x_TD.device)
    clean_T[0] = clean_T[-1] = True
    dirty_TD = torch.where(clean_T.unsqueeze(-1), x_TD, torch.nan)
    hidden_TD = model.hidden(dirty_TD, positions_T, Alone())
    logits_TV = model.logits(hidden_TD)
    if logits_TV[clean_T].isnan().any():
        raise ModelError("its tokens reach one another beside attention")
    if not logits_TV[~clean_T].isnan().any(dim=-1).all():
        raise ModelError("its results do not follow from the embeddings given")


def _check_positions(model: Probed, x_TD: Tensor, positions_T: Tensor, last: int) -> None:
    """Check that of equal tokens each is what its own position makes of it."""
    x_TD = x_TD[:1].expand_as(x_TD)
    late_T = positions_T.clone()
    late_T[2:] = last

    def outputs(positions_T: Tensor) -> list[Tensor]:
        alone = Alone()
        hidden_TD = model.hidden(x_TD, positions_T, alone)
        return [*alone.outputs, hidden_TD]

    first = outputs(positions_T)
    for found, expected in zip(outputs(late_T), first, strict=True):
        if not _close(found[:2], expected[:2], x_TD.dtype):
            raise ModelError(
                "a token's result depends on the positions of others, as with rotary angles that "
                "change with the length; a smaller max_model_len may do without them"
            )
    for found, expected in zip(outputs(positions_T.flip(0)), first, strict=True):
        if not _close(found.flip(0), expected, x_TD.dtype):
            raise ModelError("its layers do not heed the positions given")


def _close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    if found.shape != expected.shape:
        return False
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= TOLERANCE[dtype] * expected.float().abs().max())
