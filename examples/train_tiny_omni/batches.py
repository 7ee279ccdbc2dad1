"""Documents as batches: one line of tokens, and the media whose rows stand in it.

Axes in names: T tokens, F pictures and frames, N sounds, M tokens that rows replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from examples.train_tiny.batches import Mixture, Numbered, Tensors, load_numbered
from examples.train_tiny_omni.clips import DIRECTIONS, Clip
from examples.train_tiny_omni.corpus import AUDIO, IMAGE, VIDEO, Corpus, Document, Drawn
from examples.train_tiny_omni.features import (
    MERGED,
    NUM_FRAMES,
    SIDE,
    SOUND_SAMPLES,
    SOUND_SLICES,
    chosen_frames,
    padded,
    square,
)
from examples.train_tiny_omni.pictures import COLOURS, NAMELESS, SHAPES, Figure
from examples.train_tiny_omni.sounds import COUNTS, TONES, Sound
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader

MAX_LENGTH = 1024
PICTURE_ROWS, SOUND_ROWS = 9, SOUND_SLICES // MERGED
UNKNOWN = -1


@dataclass(frozen=True)
class Batch(Tensors):
    ids_T: Tensor
    targets_T: Tensor
    weights_T: Tensor
    positions_T: Tensor
    borders: Tensor
    pixels: Tensor
    """Bytes [F, 3, side, side]."""
    steps_F: Tensor
    """The number of a frame in its clip."""
    seen_M: Tensor
    samples: Tensor
    """16-bit [N, samples]."""
    heard_M: Tensor
    figures: Tensor
    """[F, 2]: shape and colour, of clips in the first frame only."""
    middles: Tensor
    """[F, 2]: where the shape is."""
    moves: Tensor
    """Moves of clips, [clips, 3]: the first frame, the last one, the direction."""
    beeps: Tensor
    """[N, 2]: count and pitch."""


class Line:
    """Collects documents until the line is full."""

    def __init__(self, tokenizer: Tokenizer, num_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._places = {tokenizer.token_to_id(name) for name in (IMAGE, VIDEO, AUDIO)}
        self._size = num_tokens
        self.ids: list[int] = []
        self.learn: list[bool] = []
        self.borders = [0]
        self._pixels: list[np.ndarray] = []
        self._steps: list[int] = []
        self._samples: list[np.ndarray] = []
        self._seen: list[int] = []
        self._heard: list[int] = []
        self._figures: list[tuple[int, int]] = []
        self._middles: list[tuple[float, float]] = []
        self._moves: list[tuple[int, int, int]] = []
        self._beeps: list[tuple[int, int]] = []

    def add(self, document: Document) -> bool:
        """Put a document behind the others; False where there is no room for it."""
        ids: list[int] = []
        learn: list[bool] = []
        seen: list[int] = []
        heard: list[int] = []
        waiting = list(document.items)
        for piece in document.pieces:
            for token in self._tokenizer.encode(piece.text, add_special_tokens=False).ids:
                count = 1
                if token in self._places:
                    item = waiting.pop(0)
                    count = rows_of(item)
                    places = range(len(self.ids) + len(ids), len(self.ids) + len(ids) + count)
                    (heard if isinstance(item, Sound) else seen).extend(places)
                ids += [token] * count
                learn += [piece.learn] * count
        if len(ids) > MAX_LENGTH:
            return True
        if len(self.ids) + len(ids) > self._size:
            return False
        self.ids += ids
        self.learn += learn
        self.borders.append(len(self.ids))
        self._seen += seen
        self._heard += heard
        for item in document.items:
            self._look(item)
        return True

    def _look(self, item: Drawn) -> None:
        if isinstance(item, Sound):
            self._samples.append(np.rint(padded(item.samples_S) * 32767).astype(np.int16))
            self._beeps.append((COUNTS.index(item.count), list(TONES).index(item.pitch)))
            return
        pictures = item.pictures if isinstance(item, Clip) else [item]
        chosen = [pictures[number] for number in chosen_frames(len(pictures))]
        if isinstance(item, Clip):
            first, way = len(self._pixels), list(DIRECTIONS).index(item.direction)
            self._moves.append((first, first + len(chosen) - 1, way))
        self._pixels += [square(each.image) for each in chosen]
        self._steps += range(len(chosen))
        # All frames show the same: were all asked, a few clips would count more than many pictures.
        self._figures += [numbers_of(item.figure), *[(UNKNOWN, UNKNOWN)] * (len(chosen) - 1)]
        self._middles += [each.place for each in chosen]

    def batch(self) -> Batch:
        """What was collected, filled up to the line's length with a document of nothing."""
        rest = self._size - len(self.ids)
        if rest:
            self.borders.append(self._size)
        borders = np.array(self.borders)
        ids = np.array(self.ids + [0] * (rest + 1))
        learn = np.array(self.learn + [False] * (rest + 1))[1:]
        learn[borders[1:] - 1] = False  # a document says nothing about the next one
        positions = np.arange(self._size) - np.repeat(borders[:-1], np.diff(borders))
        # Where there are none, an encoder is given one that stands nowhere: it takes no less.
        pixels = self._pixels or [np.zeros((3, SIDE, SIDE), np.uint8)]
        samples = self._samples or [np.zeros(SOUND_SAMPLES, np.int16)]
        return Batch(
            torch.from_numpy(ids[:-1]),
            torch.from_numpy(ids[1:]),
            torch.from_numpy(learn.astype(np.float32)),
            torch.from_numpy(positions),
            torch.from_numpy(borders.astype(np.int32)),
            torch.from_numpy(np.stack(pixels)),
            torch.tensor(self._steps or [0]),
            torch.tensor(self._seen, dtype=torch.int64),
            torch.from_numpy(np.stack(samples)),
            torch.tensor(self._heard, dtype=torch.int64),
            torch.tensor(self._figures or [(UNKNOWN, UNKNOWN)]),
            torch.tensor(self._middles or [(0.0, 0.0)], dtype=torch.float32),
            torch.tensor(self._moves or [(0, 0, UNKNOWN)]),
            torch.tensor(self._beeps or [(UNKNOWN, UNKNOWN)]),
        )


def numbers_of(figure: Figure) -> tuple[int, int]:
    colour = UNKNOWN if figure.colour == NAMELESS else list(COLOURS).index(figure.colour)
    return SHAPES.index(figure.shape), colour


def rows_of(item: Drawn) -> int:
    """The tokens that an item takes."""
    if isinstance(item, Sound):
        return SOUND_ROWS
    return PICTURE_ROWS * (min(len(item.pictures), NUM_FRAMES) if isinstance(item, Clip) else 1)


def filled(tokenizer: Tokenizer, num_tokens: int, documents: Iterable[Document]) -> Batch:
    """As many documents as one line takes."""
    line = Line(tokenizer, num_tokens)
    for document in documents:
        if not line.add(document):
            break
    return line.batch()


def load_batches(tokenizer_file: Path, mixture: Mixture, num_workers: int) -> DataLoader[Batch]:
    prepare = partial(_prepare, tokenizer_file, mixture)
    return load_numbered(Numbered(mixture.num_batches, prepare), num_workers)


def _prepare(tokenizer_file: Path, mixture: Mixture) -> Callable[[int], Batch]:
    tokenizer, corpus = Tokenizer.from_file(str(tokenizer_file)), Corpus(mixture.seed)
    return lambda number: filled(tokenizer, mixture.num_tokens, corpus.documents(number))
