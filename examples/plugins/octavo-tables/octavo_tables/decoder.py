"""Tables of numbers: CSV files with names in their first line, and columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_registry.modalities import MediaError, MediaLimitError, MediaLimits

MAX_CELLS = 65_536
MAX_COLUMNS = 16  # as many as the model has places for
CELL_BYTES = 80  # as text in Python, and as a number


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The decoded value."""

    names: tuple[str, ...]
    """Names of the columns."""
    cells: NDArray[np.float32]
    """[rows, columns], all finite."""


class TableDecoder:
    """Returns a Table. Called from several threads at a time, it keeps nothing."""

    def decode(self, data: bytes, limits: MediaLimits, options: Mapping[str, Any]) -> Table:
        """Read a CSV file in UTF-8; how large it becomes is known before it is split."""
        _reserve(data.count(b",") + data.count(b"\n") + 1, limits)
        try:
            header, *lines = data.decode("utf-8").strip().splitlines()
            cells = [[float(cell) for cell in line.split(",")] for line in lines]
        except ValueError as error:
            raise MediaError(f"it is no CSV of numbers below a line of names: {error}") from error
        return _checked(header.split(","), cells)

    def convert(self, given: Any, limits: MediaLimits, options: Mapping[str, Any]) -> Table:
        """Take a Table, or columns: ``{"year": [1970, 1980], "height": [1.5, 2.5]}``."""
        if isinstance(given, Table):
            _reserve(given.cells.size, limits)
            return given
        if not isinstance(given, Mapping):
            raise MediaError(f"it is a {type(given).__name__}; give a dict of columns, or CSV")
        columns = list(given.values())
        if not all(isinstance(column, (list, tuple, np.ndarray)) for column in columns):
            raise MediaError("its columns must be lists of numbers")
        _reserve(sum(map(len, columns)), limits)
        if len(set(map(len, columns))) > 1:
            raise MediaError("its columns are of several lengths")
        return _checked(list(given), list(zip(*columns, strict=True)))

    def is_item(self, given: Sequence[Any]) -> bool:
        """A list is a list of tables."""
        return False

    def content(self, value: Table) -> Iterator[bytes]:
        """Names and numbers."""
        yield f"{list(value.names)} {value.cells.shape}:".encode()
        yield value.cells.tobytes()


def _reserve(num_cells: int, limits: MediaLimits) -> None:
    if num_cells > MAX_CELLS:
        raise MediaLimitError(f"it has {num_cells:,} cells; at most {MAX_CELLS:,}")
    limits.check_time()
    limits.reserve(CELL_BYTES * num_cells)


def _checked(names: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Table:
    names = tuple(str(name).strip() for name in names)
    if not all(name.isprintable() and name for name in names) or len(names) > MAX_COLUMNS:
        raise MediaError(f"it must have 1 to {MAX_COLUMNS} names of columns that can be read")
    if not rows or any(len(row) != len(names) for row in rows):
        raise MediaError(f"it must have rows, and each {len(names)} cells")
    try:
        cells = np.array(rows, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise MediaError(f"its cells must be numbers: {error}") from error
    if cells.ndim != 2 or not np.isfinite(cells).all():
        raise MediaError("its cells must be finite numbers")
    return Table(names, cells)
