"""Documents as batches: one line of tokens, cut where it is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from examples.train_tiny.chat import Piece
from examples.train_tiny.corpus import Corpus
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

B = TypeVar("B", bound="Tensors")
PROMPT_WEIGHT = 0.1
"""How much a prompt's tokens count beside the answers': enough to learn what follows what."""


class Tensors:
    """A dataclass of tensors, which go the same way."""

    def to(self, device: str) -> Self:
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*(change(tensor) for tensor in vars(self).values()))


@dataclass(frozen=True)
class Batch(Tensors):
    ids_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    positions_T: Tensor
    borders: Tensor


@dataclass(frozen=True)
class Mixture:
    """What batch comes when. The first ``copying_batches`` hold much plain copying."""

    seed: int
    num_batches: int
    num_tokens: int
    copying_batches: int = 0


class Numbered(IterableDataset[B]):
    """Batch i is the same whatever the number of workers: each makes every n-th."""

    def __init__(self, num_batches: int, prepare: Callable[[], Callable[[int], B]]) -> None:
        """``prepare`` is called once by each worker, and gives what makes batch i."""
        self._num_batches = num_batches
        self._prepare = prepare

    def __iter__(self) -> Iterator[B]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return map(self._prepare(), range(first, self._num_batches, step))


def load_numbered(batches: Numbered[B], num_workers: int) -> DataLoader[B]:
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=num_workers,
        prefetch_factor=2 if num_workers else None,
        pin_memory=torch.cuda.is_available(),
    )


def load_batches(tokenizer_file: Path, mixture: Mixture, num_workers: int) -> DataLoader[Batch]:
    prepare = partial(_prepare, tokenizer_file, mixture)
    return load_numbered(Numbered(mixture.num_batches, prepare), num_workers)


def _prepare(tokenizer_file: Path, mixture: Mixture) -> Callable[[int], Batch]:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return partial(_make, Corpus(mixture.seed), tokenizer, mixture)


def _make(corpus: Corpus, tokenizer: Tokenizer, mixture: Mixture, number: int) -> Batch:
    copying = 0.7 * max(0.0, 1 - number / max(1, mixture.copying_batches))
    return batch_of(corpus.documents(number, copying=copying), tokenizer, mixture.num_tokens)


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
