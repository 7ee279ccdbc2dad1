"""A folder's weight files as one stream of tensors, checked before the first is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ModelError
from octavo.model_folder.header import TensorEntry, read_header

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ANY_FILE = "*.safetensors"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Weight files and what their headers say; no tensor is in memory yet."""

    files: Mapping[Path, list[TensorEntry]]

    def tensors(self) -> Iterator[tuple[Path, str, Tensor]]:
        """Yield file, name and tensor in the order of the bytes; a tensor is a view of the file.

        Views are read from disk when they are copied, so what is skipped costs nothing.
        """
        from safetensors import SafetensorError, safe_open

        for path, entries in self.files.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for entry in entries:
                        yield path, entry.name, file.get_tensor(entry.name)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}") from error


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find the folder's safetensors and check headers and index; the names are then unique.

    One file goes before an index, as in Transformers, and an index before any other files.
    """
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return Checkpoint({single: read_header(single)})
    if index.is_file():
        weight_map = _read_index(index)
        names = sorted(set(weight_map.values()))
        files = {folder / name: read_header(folder / name) for name in names}
        _check_index(index, weight_map, files)
    else:
        files = {path: read_header(path) for path in sorted(folder.glob(ANY_FILE))}
        if not files:
            raise _no_weights(folder)
    _check_unique(files)
    return Checkpoint(files)


def _no_weights(folder: Path) -> ModelError:
    pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    if pickles:
        return ModelError(
            f"{folder} has weights only as {pickles[0]}: pickle files are never opened, because "
            "they can run code; convert them to safetensors"
        )
    return ModelError(
        f"{folder} has no weights: looked for {SINGLE_FILE}, {INDEX_FILE} and {ANY_FILE}; "
        'to run on made-up weights, pass load_format="dummy"'
    )


def _read_index(index: Path) -> dict[str, str]:
    """Return file name by tensor name; every file lies in the folder itself and exists."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise ModelError(f"{index} is no index of weights: it has no weight_map") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} is no index of weights: its weight_map is not an object")
    for tensor, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelError(f"{index}: tensor {tensor!r} is in {file_name!r}, not a file's name")
        if not os.path.isfile(index.parent / file_name):  # False too for a name no system allows
            raise ModelError(
                f"{index.parent / file_name} is missing: {index.name} puts tensor {tensor!r} there"
            )
    return weight_map


def _check_index(
    index: Path, weight_map: Mapping[str, str], files: Mapping[Path, list[TensorEntry]]
) -> None:
    present = {path.name: {entry.name for entry in entries} for path, entries in files.items()}
    for tensor, file_name in weight_map.items():
        if tensor not in present[file_name]:
            raise ModelError(
                f"{index.parent / file_name} has no tensor {tensor!r}, which {index.name} puts "
                "there; download both again"
            )


def _check_unique(files: Mapping[Path, list[TensorEntry]]) -> None:
    first: dict[str, Path] = {}
    for path, entries in files.items():
        for entry in entries:
            if entry.name in first:
                raise ModelError(
                    f"tensor {entry.name!r} is in both {first[entry.name].name} and {path.name} "
                    f"of {path.parent}; remove the file that does not belong"
                )
            first[entry.name] = path
