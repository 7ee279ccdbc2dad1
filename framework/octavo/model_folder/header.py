"""The header of a safetensors file, read and checked before any of its bytes become a tensor.

Layout: 8 bytes of length, that many bytes of JSON, then the tensors' bytes without gaps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ModelError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_NAME_CHARS = 1024
MAX_DIMS = 16
MAX_NUMBERS = 1 << 62
"""What a shape may announce, counting a size of 0 as 1: beyond, torch cannot say its strides."""

DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies; offsets count from the end of the header."""

    name: str
    dtype: str
    """As in the file: "F32", "BF16", ..."""
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path, *, max_bytes: int = MAX_HEADER_BYTES) -> list[TensorEntry]:
    """Return the file's tensors in the order of their bytes; a damaged file is a ModelError.

    So is one whose header has more than ``max_bytes``: to read it holds the interpreter.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if prefix == b"version ":
                raise ModelError(f"{path} is a Git LFS pointer, not the weights; run git lfs pull")
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, file_bytes - 8):
                raise ModelError(
                    f"{path} is not a safetensors file, or was cut: it has {file_bytes} bytes and "
                    f"announces a header of {header_bytes}; download it again"
                )
            if header_bytes > max_bytes:
                raise ModelError(
                    f"{path} has a header of {header_bytes} bytes, more than the {max_bytes} that "
                    "are read; save it with fewer tensors"
                )
            text = file.read(header_bytes)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    entries = [
        _entry(path, name, value)
        for name, value in _parse_object(path, text).items()
        if name != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_extents(path, entries, file_bytes - 8 - header_bytes)
    return entries


def _parse_object(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if len(key) > MAX_NAME_CHARS:
                raise ModelError(f"{path}: its header has a name of {len(key)} characters")
            if key in found:
                raise ModelError(f"{path}: its header names {key!r} twice; download it again")
            found[key] = value
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: its header is no JSON ({error}); download it again") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: its header is no JSON object; download it again")
    return header


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if all(
            type(number) is int and number >= 0 for number in (*shape[: MAX_DIMS + 1], begin, end)
        ):
            entry = TensorEntry(name, dtype, tuple(shape), begin, end)
        case _:
            raise ModelError(f"{path}: tensor {name!r} has a malformed header entry")
    if dtype not in DTYPE_BITS:
        raise ModelError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    if len(shape) > MAX_DIMS or math.prod(max(size, 1) for size in shape) > MAX_NUMBERS:
        raise ModelError(f"{path}: tensor {name!r} has a shape that no tensor can have")
    if math.prod(shape) * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise ModelError(
            f"{path}: tensor {name!r} of {dtype} {shape} cannot take {end - begin} bytes"
        )
    return entry


def _check_extents(path: Path, entries: list[TensorEntry], data_bytes: int) -> None:
    """The tensors' bytes must follow one another from the first byte to the file's last."""
    expected = 0
    for entry in entries:
        if entry.begin != expected:
            raise ModelError(
                f"{path}: tensor {entry.name!r} begins at byte {entry.begin}, not {expected}"
            )
        if entry.end > data_bytes:
            raise ModelError(
                f"{path} was cut: tensor {entry.name!r} ends at byte {entry.end} of the data, "
                f"which has {data_bytes}; download it again"
            )
        expected = entry.end
    if expected != data_bytes:
        raise ModelError(
            f"{path} has {data_bytes - expected} bytes after its last tensor; download it again"
        )
