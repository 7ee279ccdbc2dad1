from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo_plugins.models.transformers import probe
from octavo_plugins.models.transformers.attention import AskedMask, AttentionCall, hand_over

LENGTH = 64


class Mixing(nn.Module):
    """A model of one layer for the trial run; each fault is one that some architecture has."""

    def __init__(self, fault: str = "none") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.fault = fault
        self.embedding_VD = torch.randn(9, 8, generator=generator)
        self.weight_DD = torch.randn(8, 8, generator=generator)

    def hidden(self, x_TD: Tensor, positions_T: Tensor, handler: Any) -> Tensor:
        if self.fault == "positions of its own":
            positions_T = torch.arange(len(x_TD))
        if self.fault == "angles by length":
            positions_T = positions_T / positions_T.max()
        y_TD = (x_TD @ self.weight_DD) * (1 + positions_T.unsqueeze(-1)).sqrt()
        y_TD = handler.attend(self, *[y_TD.unsqueeze(1)] * 3, None).squeeze(1)
        if self.fault == "token shift":
            y_TD = y_TD + x_TD.roll(1, 0)
        if self.fault == "norm over tokens":
            y_TD = y_TD / y_TD.std()
        return x_TD + y_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD @ self.embedding_VD.T

    def whole(self, tokens_T: Tensor, positions_T: Tensor, handler: Any) -> Tensor:
        logits_TV = self.logits(self.hidden(self.embedding_VD[tokens_T], positions_T, handler))
        return logits_TV * 2 if self.fault == "scaled logits" else logits_TV


def try_out(model: Mixing) -> None:
    tokens_T = torch.arange(4)
    x_TD = model.embedding_VD[tokens_T]
    probe.check_tokens_are_apart(model, tokens_T, x_TD, last=LENGTH - 1)


def test_a_model_whose_tokens_meet_in_attention_only_passes() -> None:
    try_out(Mixing())


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("token shift", "beside attention"),
        ("norm over tokens", "beside attention"),
        ("positions of its own", "do not heed the positions"),
        ("angles by length", "the positions of others"),
        ("scaled logits", "more than hidden states"),
    ],
)
def test_a_model_whose_tokens_meet_elsewhere_is_refused(fault, reason) -> None:
    with pytest.raises(ModelError, match=reason):
        try_out(Mixing(fault))


def asked(allows: Callable[[Tensor, Tensor], Tensor], **changes: Any) -> AttentionCall:
    mask = AskedMask(lambda batch, head, query, key: allows(query, key), num_queries=4, num_keys=4)
    call = {"scale": 1.0, "window": None, "softcap": None, "sinks_H": None, "is_causal": True}
    return AttentionCall(**{**call, "mask": mask, **changes})


@pytest.mark.parametrize("window", [1, 2, 20, LENGTH - 1])
def test_a_windows_size_is_read_off_the_mask(window) -> None:
    call = asked(lambda q, k: (k <= q) & (k > q - window))
    assert probe.window_of(call, LENGTH) == window


@pytest.mark.parametrize("window", [LENGTH, 10 * LENGTH])
def test_a_window_that_no_sequence_fills_is_none(window) -> None:
    call = asked(lambda q, k: (k <= q) & (k > q - window), window=window)
    assert probe.window_of(call, LENGTH) is None


@pytest.mark.parametrize(
    "allows",
    [
        lambda q, k: (k >= 0) & (q >= 0),
        lambda q, k: (k <= q) & (k // 16 == q // 16),
        lambda q, k: (k <= q) & (k // 32 == q // 32),
        lambda q, k: (k <= q) | ((k < 4) & (q < 4)),
        lambda q, k: (k <= q) & ((k > q - 8) | (k < 2)),
        lambda q, k: k < q,
    ],
    ids=["bidirectional", "chunks", "two chunks", "a prefix seen whole", "first tokens", "strict"],
)
def test_a_mask_that_no_backend_knows_is_refused(allows) -> None:
    with pytest.raises(ModelError, match="not causal with or without a window"):
        probe.window_of(asked(allows), LENGTH)


def test_a_long_context_is_not_looked_at_entry_by_entry() -> None:
    asked_for = []

    def allows(query: Tensor, key: Tensor) -> Tensor:
        asked_for.append(query.numel() * key.numel())
        return key <= query

    assert probe.window_of(asked(allows), 131_072) is None
    assert sum(asked_for) < 4_000_000  # all keys of a thousand queries: seconds a layer


def test_a_layer_without_a_mask_is_causal_or_refused() -> None:
    assert probe.window_of(asked(lambda q, k: k <= q, mask=None, window=7), LENGTH) == 7
    with pytest.raises(ModelError, match="not causal"):
        probe.window_of(asked(lambda q, k: k <= q, mask=None, is_causal=False), LENGTH)


def test_a_window_given_beside_another_in_the_mask_is_refused() -> None:
    with pytest.raises(ModelError, match="window of 8 and asks for a mask with None"):
        probe.window_of(asked(lambda q, k: k <= q, window=8), LENGTH)


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"scaling": torch.ones(1)}, "a scaling of type Tensor"),
        ({"block_indices": 3, "no_such": None}, r" block_indices$"),
    ],
)
def test_a_keyword_of_an_attention_call_that_is_not_known_raises(keywords, reason) -> None:
    x_BHTD = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match=f"Linear calls attention with.*{reason}"):
        hand_over(nn.Linear(1, 1), x_BHTD, x_BHTD, x_BHTD, None, **keywords)


def test_a_mask_that_a_layer_has_made_itself_raises() -> None:
    x_BHTD = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match="Linear makes an attention mask of its own"):
        hand_over(nn.Linear(1, 1), x_BHTD, x_BHTD, x_BHTD, torch.zeros(1, 1, 3, 3))
