"""Parameters that name tokens: logit_bias, allowed_token_ids and bad words, kept on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.limits import MAX_BAD_WORD_TOKENS, MAX_LOGIT_BIAS
from octavo.messages import TokenSampling
from octavo.steps.features import MAX_BAD_WORD_FORMS
from octavo.steps.uploads import upload
from octavo_kernels.sample import SamplingState

_ITEM_BYTES: Final = 4


def table_bytes(num_slots: int, vocab_size: int) -> int:
    """All tables on a device: 88 KiB a slot for a vocabulary of 128k."""
    bias = MAX_LOGIT_BIAS * (_ITEM_BYTES + _ITEM_BYTES)
    allowed = _ITEM_BYTES * _num_words(vocab_size)
    bad_words = _ITEM_BYTES * MAX_BAD_WORD_FORMS * MAX_BAD_WORD_TOKENS
    return (num_slots + 1) * (bias + allowed + bad_words)  # one slot is padding


class SparseParameters:
    """One table a kind, one row a slot, neutral where a slot has none.

    A table has room for the most that a request may bring. Ids that come in are below
    ``vocab_size``, the width of the logits.
    """

    def __init__(self, state: SamplingState, vocab_size: int, *, at_start: bool) -> None:
        """``at_start``: make the tables now, and never another ``state``.

        Recorded steps read the tables that there were; else each is made at its first use.
        """
        self.state = state
        """With the tables there are so far."""
        self._vocab_size = vocab_size
        if at_start:
            self._make_bias()
            self._make_allowed()
            self._make_bad_words()

    def attach(self, slot: int, sampling: TokenSampling) -> None:
        """Write a slot's rows anew, whoever had it before; steps launched earlier don't see it."""
        self._clear(slot)
        if sampling.logit_bias:
            self._attach_bias(slot, sampling.logit_bias)
        if sampling.allowed_token_ids is not None:
            self._attach_allowed(slot, sampling.allowed_token_ids)
        if sampling.bad_word_ids:
            self._attach_bad_words(slot, sampling.bad_word_ids)

    def _clear(self, slot: int) -> None:
        if self.state.biases_SN is not None:
            self.state.biases_SN[slot] = 0
        if self.state.allowed_SW is not None:
            self.state.allowed_SW[slot] = -1
        if self.state.bad_words_SNL is not None:
            self.state.bad_words_SNL[slot] = -1

    def _attach_bias(self, slot: int, bias: dict[int, float]) -> None:
        ids_SN, amounts_SN = self.state.bias_ids_SN, self.state.biases_SN
        if ids_SN is None or amounts_SN is None:
            ids_SN, amounts_SN = self._make_bias()
        ids_N = np.fromiter(bias.keys(), np.int32, len(bias))
        amounts_N = np.fromiter(bias.values(), np.float32, len(bias))
        ids_SN[slot, : len(bias)] = upload(ids_N, ids_SN.device)
        amounts_SN[slot, : len(bias)] = upload(amounts_N, ids_SN.device)

    def _attach_allowed(self, slot: int, ids: tuple[int, ...]) -> None:
        allowed_SW = self.state.allowed_SW
        if allowed_SW is None:
            allowed_SW = self._make_allowed()
        bits_V = np.zeros(32 * allowed_SW.shape[1], np.bool_)
        bits_V[list(ids)] = True
        words_W = np.packbits(bits_V, bitorder="little").view("<i4").astype(np.int32)
        allowed_SW[slot] = upload(words_W, allowed_SW.device)

    def _attach_bad_words(self, slot: int, words: tuple[tuple[int, ...], ...]) -> None:
        words_SNL = self.state.bad_words_SNL
        if words_SNL is None:
            words_SNL = self._make_bad_words()
        rows_NL: NDArray[np.int32] = np.full((len(words), MAX_BAD_WORD_TOKENS), -1, np.int32)
        for row_L, word in zip(rows_NL, words, strict=True):
            row_L[MAX_BAD_WORD_TOKENS - len(word) :] = word
        words_SNL[slot, : len(words)] = upload(rows_NL, words_SNL.device)

    def _make_bias(self) -> tuple[Tensor, Tensor]:
        ids_SN = self._table(0, torch.int32, MAX_LOGIT_BIAS)
        amounts_SN = self._table(0.0, torch.float32, MAX_LOGIT_BIAS)
        self.state = replace(self.state, bias_ids_SN=ids_SN, biases_SN=amounts_SN)
        return ids_SN, amounts_SN

    def _make_allowed(self) -> Tensor:
        allowed_SW = self._table(-1, torch.int32, _num_words(self._vocab_size))
        self.state = replace(self.state, allowed_SW=allowed_SW)
        return allowed_SW

    def _make_bad_words(self) -> Tensor:
        words_SNL = self._table(-1, torch.int32, MAX_BAD_WORD_FORMS, MAX_BAD_WORD_TOKENS)
        self.state = replace(self.state, bad_words_SNL=words_SNL)
        return words_SNL

    def _table(self, neutral: float, dtype: torch.dtype, *row_shape: int) -> Tensor:
        tokens_SL = self.state.tokens_SL
        shape = (tokens_SL.shape[0], *row_shape)
        return torch.full(shape, neutral, dtype=dtype, device=tokens_SL.device)


def _num_words(vocab_size: int) -> int:
    """Words of a bit for each token."""
    return -(-vocab_size // 32)
