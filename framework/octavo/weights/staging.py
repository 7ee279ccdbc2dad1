"""Checkpoint tensors on their way to a CUDA device: read by threads, copied behind the reading.

The files' data is one stream of bytes. Threads read it ahead, in pieces, into pinned buffers; from
there it is copied into a tensor on the device, which the model takes as it takes any other, so
that casting, cutting and fusing are work of the device. On an H200's host, files in the page cache
are loaded at 41 to 50 GB/s (22 the first time, with the pinning), by plain copies of mapped files
at 6 to 9; the bus gives 53.

Axis suffix: N bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.model_folder.header import TensorEntry
from octavo.weights.checkpoint import Checkpoint

PIECE_BYTES = 8 << 20  # 8 threads read 52 GB/s in pieces of 8 MiB, 34 GB/s in pieces of 64 MiB
NUM_THREADS = 8
NUM_COPIES = 4
"""Pieces that may still be on their way to the device before the oldest of them is waited for."""
NUM_BUFFERS = NUM_THREADS + 2 * NUM_COPIES
"""Read, read ahead, copied: 128 MiB, pinned in 60 ms."""

TORCH_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


def staged_tensors(
    checkpoint: Checkpoint, device: torch.device, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[Path, str, Tensor]]:
    """Yield file, name and tensor as ``Checkpoint.tensors`` does, but on ``device``.

    A tensor is the caller's own. It is complete for work on the current stream alone.
    """
    with _ByteStream(checkpoint, device, piece_bytes) as stream:
        for path, entries in checkpoint.files.items():
            for entry in entries:
                dtype = _torch_dtype(path, entry)
                bytes_N = torch.empty(entry.end - entry.begin, dtype=torch.uint8, device=device)
                stream.read_into(bytes_N)
                yield path, entry.name, bytes_N.view(dtype).view(entry.shape)


def _torch_dtype(path: Path, entry: TensorEntry) -> torch.dtype:
    if entry.dtype not in TORCH_DTYPES:
        raise ModelError(
            f"{path}: tensor {entry.name!r} of {entry.dtype} cannot be loaded on CUDA; these can: "
            f"{', '.join(TORCH_DTYPES)}"
        )
    return TORCH_DTYPES[entry.dtype]


class _ByteStream:
    """The tensors' bytes of all files in order, without the headers between them."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, piece_bytes: int) -> None:
        self._device = device
        self._piece_bytes = piece_bytes
        self._pieces = self._cut(checkpoint)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "octavo-weights")
        self._read: deque[tuple[Tensor, Future[int]]] = deque()
        self._copied: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._buffer_N: Tensor | None = None
        self._position = self._end = 0

    def __enter__(self) -> Self:
        # Each buffer is pinned when those before it are already being read into.
        for path, begin, end in islice(self._pieces, NUM_BUFFERS):
            buffer_N = torch.empty(
                self._piece_bytes,
                dtype=torch.uint8,
                device="cpu",
                pin_memory=self._device.type == "cuda",
            )
            self._start_reading(path, begin, end, buffer_N)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def read_into(self, target_N: Tensor) -> None:
        """Fill a tensor on the device with the bytes that come next."""
        filled = 0
        while filled < len(target_N):
            if self._position == self._end:
                self._advance()
            assert self._buffer_N is not None
            count = min(self._end - self._position, len(target_N) - filled)
            part_N = self._buffer_N[self._position : self._position + count]
            target_N[filled : filled + count].copy_(part_N, non_blocking=True)
            filled += count
            self._position += count

    def _cut(self, checkpoint: Checkpoint) -> Iterator[tuple[Path, int, int]]:
        """Name file, first byte and end of each piece."""
        for path, entries in checkpoint.files.items():
            data_bytes = entries[-1].end if entries else 0
            file_bytes = path.stat().st_size  # what the header says ends where the file does
            for begin in range(file_bytes - data_bytes, file_bytes, self._piece_bytes):
                yield path, begin, min(begin + self._piece_bytes, file_bytes)

    def _start_reading(self, path: Path, begin: int, end: int, buffer_N: Tensor) -> None:
        self._read.append((buffer_N, self._threads.submit(_read, path, begin, end, buffer_N)))

    def _advance(self) -> None:
        """Go to the next piece; the buffer whose copies are over reads one further ahead."""
        if self._buffer_N is not None:
            self._copied.append((self._buffer_N, self._record()))
        if len(self._copied) > NUM_COPIES:
            free_N, event = self._copied.popleft()
            if event is not None:
                event.synchronize()
            for path, begin, end in islice(self._pieces, 1):
                self._start_reading(path, begin, end, free_N)
        self._buffer_N, reading = self._read.popleft()
        self._position, self._end = 0, reading.result()

    def _record(self) -> torch.cuda.Event | None:
        """Mark the end of the copies so far; a CPU's are over when they return."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def _read(path: Path, begin: int, end: int, buffer_N: Tensor) -> int:
    """Fill the buffer's front with a piece of a file and return how many bytes that is."""
    target = buffer_N.numpy().data[: end - begin]
    try:
        with path.open("rb", buffering=0) as file:
            while target:
                count = os.preadv(file.fileno(), [target], end - len(target))
                if count == 0:
                    raise ModelError(f"{path} became shorter while it was read; load again")
                target = target[count:]
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return end - begin
