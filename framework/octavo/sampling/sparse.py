"""Parameters that name tokens: logit_bias, allowed_token_ids and bad words, kept on the device."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.engine.messages import TokenSampling
from octavo.params import MAX_LOGIT_BIAS
from octavo.sampling.edits import add_to_tokens, mask_tokens
from octavo.sampling.features import MAX_BAD_WORD_FORMS, MAX_BAD_WORD_TOKENS
from octavo.sampling.state import SamplingState
from octavo.sampling.uploads import upload


class SparseParameters:
    """One table a kind, one row a slot, neutral where a slot has none; made at its first use.

    A table has room for the most that a request may bring, about 80 KiB a slot in all; what is
    read of its width is the most that any request has brought so far. Ids that come in are below
    ``vocab_size``, the width of the logits.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._num_slots = num_slots
        self._vocab_size = vocab_size
        self._device = device
        self._bias: tuple[Tensor, Tensor] | None = None
        """Ids and amounts [S, N], padded with amounts of 0."""
        self._num_biases = 0
        self._allowed_SW: Tensor | None = None
        self._bad_words_SNL: Tensor | None = None
        """Words end in the last column and are padded with -1 before."""
        self._num_bad_words = 0
        self._bad_word_len = 1

    def attach(self, slot: int, sampling: TokenSampling) -> None:
        """Write a slot's rows anew, whoever had it before; steps launched earlier don't see it."""
        self._clear(slot)
        if sampling.logit_bias:
            self._attach_bias(slot, sampling.logit_bias)
        if sampling.allowed_token_ids is not None:
            self._attach_allowed(slot, sampling.allowed_token_ids)
        if sampling.bad_word_ids:
            self._attach_bad_words(slot, sampling.bad_word_ids)

    def apply_bias(self, scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor) -> None:
        """Ban what is not allowed and add logit_bias."""
        if self._allowed_SW is not None:
            mask_tokens(scores_RV, rows_G, self._allowed_SW[slots_G])
        if self._bias is not None:
            ids_SN, amounts_SN = self._bias
            ids_GN = ids_SN[slots_G, : self._num_biases]
            add_to_tokens(scores_RV, rows_G, ids_GN, amounts_SN[slots_G, : self._num_biases])

    def ban_bad_words(
        self, scores_RV: Tensor, rows_G: Tensor, slots_G: Tensor, state: SamplingState
    ) -> None:
        """Ban each word's last token where the sequence, prompt included, ends in the others."""
        if self._bad_words_SNL is None:
            return
        words_GNL = self._bad_words_SNL[slots_G, : self._num_bad_words, -self._bad_word_len :]
        heads_GNL, lasts_GN = words_GNL[:, :, :-1], words_GNL[:, :, -1]
        num_tokens_G1 = state.num_tokens_S[slots_G, None]
        back_L = torch.arange(-heads_GNL.shape[2], 0, device=self._device)
        places_GL = num_tokens_G1 + back_L
        tails_GL = state.tokens_SL[slots_G[:, None], places_GL.clamp_min(0)]
        tails_GL = tails_GL.masked_fill(places_GL < 0, -2)  # before the start: equal to no token
        matches_GNL = (heads_GNL == tails_GL[:, None]) | (heads_GNL < 0)
        amounts_GN = torch.zeros_like(lasts_GN, dtype=torch.float32)
        amounts_GN.masked_fill_(matches_GNL.all(dim=2) & (lasts_GN >= 0), -math.inf)
        add_to_tokens(scores_RV, rows_G, lasts_GN.clamp_min(0), amounts_GN)

    def _clear(self, slot: int) -> None:
        if self._bias is not None:
            for table_SN in self._bias:
                table_SN[slot] = 0
        if self._allowed_SW is not None:
            self._allowed_SW[slot] = -1
        if self._bad_words_SNL is not None:
            self._bad_words_SNL[slot] = -1

    def _attach_bias(self, slot: int, bias: dict[int, float]) -> None:
        if self._bias is None:
            ids_SN = self._table(0, torch.int64, MAX_LOGIT_BIAS)
            self._bias = ids_SN, self._table(0.0, torch.float32, MAX_LOGIT_BIAS)
        ids_SN, amounts_SN = self._bias
        self._num_biases = max(self._num_biases, len(bias))
        ids_N = np.fromiter(bias.keys(), np.int64, len(bias))
        amounts_N = np.fromiter(bias.values(), np.float32, len(bias))
        ids_SN[slot, : len(bias)] = upload(ids_N, self._device)
        amounts_SN[slot, : len(bias)] = upload(amounts_N, self._device)

    def _attach_allowed(self, slot: int, ids: tuple[int, ...]) -> None:
        num_words = -(-self._vocab_size // 32)
        if self._allowed_SW is None:
            self._allowed_SW = self._table(-1, torch.int32, num_words)
        bits_V = np.zeros(num_words * 32, np.bool_)
        bits_V[list(ids)] = True
        words_W = np.packbits(bits_V, bitorder="little").view("<i4").astype(np.int32)
        self._allowed_SW[slot] = upload(words_W, self._device)

    def _attach_bad_words(self, slot: int, words: tuple[tuple[int, ...], ...]) -> None:
        if self._bad_words_SNL is None:
            self._bad_words_SNL = self._table(
                -1, torch.int32, MAX_BAD_WORD_FORMS, MAX_BAD_WORD_TOKENS
            )
        self._num_bad_words = max(self._num_bad_words, len(words))
        self._bad_word_len = max(self._bad_word_len, *map(len, words))
        rows_NL: NDArray[np.int32] = np.full((len(words), MAX_BAD_WORD_TOKENS), -1, np.int32)
        for row_L, word in zip(rows_NL, words, strict=True):
            row_L[MAX_BAD_WORD_TOKENS - len(word) :] = word
        self._bad_words_SNL[slot, : len(words)] = upload(rows_NL, self._device)

    def _table(self, neutral: float, dtype: torch.dtype, *row_shape: int) -> Tensor:
        shape = (self._num_slots, *row_shape)
        return torch.full(shape, neutral, dtype=dtype, device=self._device)
