"""Documents as batches: one line of tokens, cut where it is full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from examples.train_tiny.chat import Piece
from examples.train_tiny.corpus import Corpus
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

PROMPT_WEIGHT = 0.1
"""How much a prompt's tokens count beside the answers': enough to learn what follows what."""


@dataclass(frozen=True)
class Batch:
    ids_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    positions_T: Tensor
    borders: Tensor

    def to(self, device: str) -> Batch:
        tensors = (getattr(self, name) for name in self.__dataclass_fields__)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in tensors))

    def pin_memory(self) -> Batch:
        return Batch(*(getattr(self, name).pin_memory() for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Mixture:
    """What batch comes when. The first ``copying_batches`` hold much plain copying."""

    seed: int
    num_batches: int
    num_tokens: int
    copying_batches: int


class Batches(IterableDataset[Batch]):
    """Batch i is the same whatever the number of workers: each makes every n-th."""

    def __init__(self, tokenizer_file: Path, mixture: Mixture) -> None:
        self._tokenizer_file = tokenizer_file
        self._mixture = mixture

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        tokenizer = Tokenizer.from_file(str(self._tokenizer_file))
        corpus = Corpus(self._mixture.seed)
        for number in range(first, self._mixture.num_batches, step):
            yield self._make(corpus, tokenizer, number)

    def _make(self, corpus: Corpus, tokenizer: Tokenizer, number: int) -> Batch:
        copying = 0.7 * max(0.0, 1 - number / max(1, self._mixture.copying_batches))
        return batch_of(
            corpus.documents(number, copying=copying), tokenizer, self._mixture.num_tokens
        )


def batch_of(documents: Iterator[list[Piece]], tokenizer: Tokenizer, num_tokens: int) -> Batch:
    """As many documents as fill the batch; what is left of the last one is dropped."""
    ids: list[int] = []
    learn: list[bool] = []
    borders = [0]
    while len(ids) < num_tokens:
        for piece in next(documents):
            tokens = tokenizer.encode(piece.text, add_special_tokens=False).ids
            ids += tokens
            learn += [piece.learn] * len(tokens)
        borders.append(min(len(ids), num_tokens))
    end = num_tokens + 1
    return _as_batch(np.array(ids[:end]), np.array(learn[:end]), np.array(borders))


def _as_batch(ids: np.ndarray, learn: np.ndarray, borders: np.ndarray) -> Batch:
    size = borders[-1]
    ids, learn = np.resize(ids, size + 1), np.resize(learn, size + 1)
    weights = np.where(learn[1:], 1.0, PROMPT_WEIGHT)
    weights[borders[1:] - 1] = 0.0  # a document says nothing about the next one
    positions = np.arange(size) - np.repeat(borders[:-1], np.diff(borders))
    return Batch(
        torch.from_numpy(ids[:-1].astype(np.int64)),
        torch.from_numpy(ids[1:].astype(np.int64)),
        torch.from_numpy(weights.astype(np.float32)),
        torch.from_numpy(positions.astype(np.int64)),
        torch.from_numpy(borders.astype(np.int32)),
    )


def load_batches(tokenizer_file: Path, mixture: Mixture, num_workers: int) -> DataLoader[Batch]:
    return DataLoader(
        Batches(tokenizer_file, mixture),
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=4 if num_workers else None,
        pin_memory=torch.cuda.is_available(),
    )
