"""What the kernels of byte machines read: the vocabulary's bytes, and the state of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST_DEPTH = 64
"""States that a stack holds."""
MOST_HOPS = 128
"""Calls and returns that one byte may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """A vocabulary's bytes on the device, made once an engine."""

    bytes_N: Tensor
    """uint8, all tokens' bytes one behind the other."""
    starts_V1: Tensor
    """int32; a token without bytes matches no text: special, None, a stop, beyond the list."""
    stops_K: Tensor
    """int32, ids that end a text."""

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
        return cls(
            bytes_N=torch.from_numpy(data).to(device),
            starts_V1=torch.from_numpy(starts).to(device),
            stops_K=torch.tensor(stops, dtype=torch.int32, device=device),
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
class MachineStates:
    """Where the slots' texts stand in their machines; int32, views of the engine's state."""

    at_S: Tensor
    """Where the slot's machine begins in the pool, in words; 0: it has none."""
    state_S: Tensor
    """-1: nothing may come any more."""
    depth_S: Tensor
    """States on the stack."""
    stack_SD: Tensor
    """First pushed first; ``MOST_DEPTH`` columns."""
