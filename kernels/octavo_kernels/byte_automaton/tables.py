"""What the kernels of byte automata read: the vocabulary's bytes, and the state of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_DEPTH = 64
"""States that a stack holds."""
MOST_HOPS = 128
"""Calls and returns that one byte may take."""


WINDOW, GROUP = 1024, 32
PLAIN_BIT, LENGTH_SHIFT = 1024, 11
"""As in kernel.cu: ids of a window, lanes of a warp, and what stands where in ``order_GL``."""

PLAIN_BYTES = np.array([0x20 <= byte < 0x7F and byte not in b'"\\' for byte in range(256)])
"""As in runs.cuh: what a string of JSON holds as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """A vocabulary's bytes on the device, made once an engine.

    The kernel reads them in another order: ids come in windows, and within each they are sorted so
    that a group of lanes has much the same to do. Tokens of plain bytes alone come first.
    """

    bytes_N: Tensor
    """uint8, all tokens' bytes one behind the other."""
    starts_V1: Tensor
    """int32; a token without bytes matches no text: special, None, a stop, beyond the list."""
    stops_K: Tensor
    """int32, ids that end a text."""
    order_GL: Tensor
    """int32, for each group's lanes: the token's length, of a stop -1, whether it is plain, and its
    place in the window."""
    word_starts_G: Tensor
    """int32, where a group's words begin."""
    words_M: Tensor
    """int32, the bytes of a group's tokens, four a word; each word of all lanes side by side."""

    @classmethod
    def of(
        cls,
        token_bytes: Sequence[bytes | None],
        stop_token_ids: Sequence[int],
        vocab_size: int,
        device: torch.device | str,
    ) -> TokenTable:
        """The table of these tokens; those at or above ``vocab_size`` are left out."""
        stops = sorted({token for token in stop_token_ids if 0 <= token < vocab_size})
        pieces = [piece or b"" for piece in token_bytes[:vocab_size]]
        pieces += [b""] * (vocab_size - len(pieces))
        for token in stops:
            pieces[token] = b""
        starts = np.zeros(vocab_size + 1, np.int32)
        np.cumsum([len(piece) for piece in pieces], out=starts[1:])
        data = np.frombuffer(b"".join(pieces), np.uint8).copy()
        arrays = (data, starts, np.array(stops, np.int32), *_arranged(data, starts, stops))
        tensors = [torch.from_numpy(array).to(device) for array in arrays]
        return cls(
            bytes_N=tensors[0],
            starts_V1=tensors[1],
            stops_K=tensors[2],
            order_GL=tensors[3],
            word_starts_G=tensors[4],
            words_M=tensors[5],
        )

    @property
    def vocab_size(self) -> int:
        """Tokens of the table."""
        return len(self.starts_V1) - 1

    def data(self, token: int) -> bytes:
        """A token's bytes; on the host."""
        if not 0 <= token < self.vocab_size:
            return b""
        start, end = self.starts_V1[token : token + 2].tolist()
        return bytes(self.bytes_N[start:end].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomatonStates:
    """Where the slots' texts stand in their automata; int32, views of the engine's state."""

    at_S: Tensor
    """Where the slot's automaton begins in the pool, in words; 0: it has none."""
    state_S: Tensor
    """-1: nothing may come any more."""
    depth_S: Tensor
    """States on the stack."""
    stack_SD: Tensor
    """First pushed first; ``MOST_DEPTH`` columns."""

    @classmethod
    def empty(cls, num_lines: int, device: torch.device) -> AutomatonStates:
        """Room for so many, not written yet."""
        words = torch.empty((3, num_lines), dtype=torch.int32, device=device)
        stack_SD = torch.empty((num_lines, MOST_DEPTH), dtype=torch.int32, device=device)
        return cls(at_S=words[0], state_S=words[1], depth_S=words[2], stack_SD=stack_SD)


def _arranged(
    data_N: NDArray[np.uint8], starts_V1: NDArray[np.int32], stops: list[int]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The tokens' order, where each group's words begin, and the words."""
    vocab_size = len(starts_V1) - 1
    lengths = np.zeros(-(-vocab_size // WINDOW) * WINDOW, np.int32)
    lengths[:vocab_size] = np.diff(starts_V1)
    lengths[stops] = -1
    ids = np.arange(len(lengths))
    beginnings = np.zeros(len(lengths), np.uint64)
    for at in range(8):
        longer = (lengths > at).nonzero()[0]
        shift = np.uint64(56 - 8 * at)
        beginnings[longer] |= data_N[starts_V1[longer] + at].astype(np.uint64) << shift
    others_N1 = np.concatenate([[0], np.cumsum(~PLAIN_BYTES[data_N])])
    is_plain = lengths > 0
    is_plain[:vocab_size] &= np.diff(others_N1[starts_V1]) == 0
    order = np.lexsort((beginnings, lengths, ~is_plain, ids // WINDOW))
    items = (lengths << LENGTH_SHIFT) + PLAIN_BIT * is_plain + ids % WINDOW
    order_GL = items.astype(np.int32)[order].reshape(-1, GROUP)
    # Each group has a word, be it empty: a lane reads its first without a look at the length.
    group_words = np.maximum(-(-lengths[order].reshape(-1, GROUP).max(1) // 4), 1)
    word_starts_G = np.zeros(len(group_words), np.int32)
    np.cumsum(GROUP * group_words[:-1], out=word_starts_G[1:])
    ranks = np.empty(len(order), np.int64)
    ranks[order] = ids
    rank_N = np.repeat(ranks[:vocab_size], np.diff(starts_V1))
    at_N = np.arange(len(data_N)) - np.repeat(starts_V1[:-1], np.diff(starts_V1))
    word_N = word_starts_G[rank_N // GROUP] + at_N // 4 * GROUP + rank_N % GROUP
    words = np.zeros((GROUP * int(group_words.sum()), 4), np.uint8)
    words[word_N, at_N % 4] = data_N
    return order_GL, word_starts_G, words.view(np.int32)[:, 0].copy()
