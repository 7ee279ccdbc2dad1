"""An adapter's tensors: out of a safetensors file that nobody vouches for, and their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from octavo.errors import AdapterError, ModelError
from octavo.host_memory import host_memory
from octavo.model_folder.header import TensorEntry, read_header
from octavo.wording import listed

MAX_HEADER_BYTES = 16 << 20
"""An adapter of about 100,000 tensors has as many."""
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Copy all tensors of a file into memory; what its header says is checked before.

    They are no views of the file, as the safetensors library's are: one that is overwritten or cut
    while it is in use would end the process.
    """
    try:
        entries = read_header(path, max_bytes=MAX_HEADER_BYTES)
    except ModelError as error:
        raise AdapterError(str(error)) from error
    if wrong := [f"{entry.name} ({entry.dtype})" for entry in entries if entry.dtype not in DTYPES]:
        raise AdapterError(f"{path}: tensors must be of {', '.join(DTYPES)}; not {listed(wrong)}")
    num_bytes = entries[-1].end if entries else 0
    if num_bytes > (available := host_memory() // 2):
        raise AdapterError(
            f"{path} has {num_bytes} bytes of tensors, more than half of the {2 * available} bytes "
            "of memory that are free"
        )
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(path.stat().st_size - num_bytes)  # what the header says ends with the file
            return {entry.name: _read(path, file, entry) for entry in entries}
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, file: IO[bytes], entry: TensorEntry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    target = tensor.view(-1).view(torch.uint8).numpy().data
    while target:
        count = file.readinto(target)  # type: ignore[attr-defined]
        if not count:
            raise AdapterError(f"{path} became shorter while it was read; load it again")
        target = target[count:]
    return tensor


def content_hash(
    down: Mapping[str, Tensor], up: Mapping[str, Tensor], scaling: Mapping[str, float]
) -> str:
    """SHA-256 of what an adapter computes: names, scalings and numbers, however they are stored."""
    digest = hashlib.sha256()
    for name in sorted(down):
        for tensor in (down[name], up[name]):
            digest.update(
                f"{name}\0{scaling[name]!r}\0{tensor.dtype}\0{[*tensor.shape]}\0".encode()
            )
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
