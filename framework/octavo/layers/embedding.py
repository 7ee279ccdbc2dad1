"""Token embedding, its rows split among the ranks, and learned positions, whole on every rank.

Axis suffixes: T tokens, D hidden, V vocabulary, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo.layers.loading import Source
from octavo.layers.sharding import collectives_of
from octavo_registry.model import ModelSpec
from octavo_registry.sites import Shard


class VocabRows:
    """This rank's rows of a vocabulary, which is padded to an equal number on each rank."""

    def __init__(self, vocab_size: int, spec: ModelSpec) -> None:
        self.vocab_size = vocab_size
        self.padded_size = -(-vocab_size // spec.tp_size)
        self.first = spec.tp_rank * self.padded_size
        self.size = min(self.padded_size, max(vocab_size - self.first, 0))

    @property
    def shard(self) -> Shard:
        """They, without padding."""
        return Shard(total=self.vocab_size, first=self.first, size=self.size)

    def empty_weight(self, hidden_size: int, spec: ModelSpec) -> nn.Parameter:
        """An uninitialised parameter [rows, D]; its padding is zero."""
        shape = (self.padded_size, hidden_size)
        weight_VD = torch.empty(shape, dtype=spec.dtype, device=spec.device)
        weight_VD[self.size :] = 0
        return nn.Parameter(weight_VD, requires_grad=False)

    def source(self, name: str, weight_VD: nn.Parameter) -> Source:
        """How the checkpoint tensor ``name`` fills that parameter."""
        return Source(
            name=name,
            shape=(self.vocab_size, weight_VD.shape[1]),
            part=(slice(self.first, self.first + self.size),),
            target=weight_VD.data[: self.size],
            parameter=weight_VD,
        )


class VocabParallelEmbedding(nn.Module):
    """Token ids to rows; ids of other ranks' rows come in through a sum over the ranks."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, *, spec: ModelSpec) -> None:
        super().__init__()
        self.name = name
        self.rows = VocabRows(vocab_size, spec)
        self.weight = self.rows.empty_weight(hidden_size, spec)
        self._collectives = collectives_of(spec)
        self._adapters = None if spec.adapters is None else spec.adapters.of_embedding(self)

    def forward(self, tokens_T: Tensor) -> Tensor:
        """The embeddings [T, D]."""
        if self._collectives is None:
            x_TD = F.embedding(tokens_T, self.weight)
            return x_TD if self._adapters is None else self._adapters.add_(x_TD, tokens_T, None)
        local_T = tokens_T - self.rows.first
        absent_T = (local_T < 0) | (local_T >= self.rows.size)
        local_T = local_T.masked_fill_(absent_T, 0)
        x_TD = F.embedding(local_T, self.weight).masked_fill_(absent_T.unsqueeze(-1), 0)
        if self._adapters is not None:
            self._adapters.add_(x_TD, local_T, absent_T)
        return self._collectives.all_reduce(x_TD)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        yield self.rows.source(f"{self.name}.weight", self.weight)


class PositionEmbedding(nn.Module):
    """A learned vector for each position; the checkpoint has ``offset`` unused rows before it."""

    def __init__(
        self, name: str, num_positions: int, hidden_size: int, *, spec: ModelSpec, offset: int = 0
    ) -> None:
        super().__init__()
        self.name = name
        self._offset = offset
        weight_PD = torch.empty(num_positions, hidden_size, dtype=spec.dtype, device=spec.device)
        self.weight = nn.Parameter(weight_PD, requires_grad=False)

    def forward(self, positions_T: Tensor) -> Tensor:
        """The vectors [T, D]."""
        return F.embedding(positions_T, self.weight)

    def sources(self) -> Iterator[Source]:
        """See ``LoadsWeights``."""
        num_positions, hidden_size = self.weight.shape
        yield Source(
            name=f"{self.name}.weight",
            shape=(self._offset + num_positions, hidden_size),
            part=(slice(self._offset, None),),
            target=self.weight.data,
            parameter=self.weight,
        )
