"""LoRA adapters: formats that read them, resolvers that find them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter's weights on the host, by full names of the model's linears."""

    rank: int
    scaling: float
    down: Mapping[str, Tensor]
    """A matrices [rank, in_features]."""
    up: Mapping[str, Tensor]
    """B matrices [out_features, rank]."""
    content_hash: str
    """SHA-256 of the files; seeds the prefix cache."""


@runtime_checkable
class AdapterFormat(Protocol):
    """Reads one on-disk format. Made without arguments, once a process."""

    def read(self, folder: Path) -> Adapter | None:
        """Return the adapter; None when the folder is of another format.

        Raises an OctavoError naming file and tensor when the folder is of this format and damaged.
        """
        ...


@runtime_checkable
class AdapterResolver(Protocol):
    """Finds adapters by name at run time. Made without arguments, once a process."""

    def find(self, name: str) -> Path | None:
        """Return the adapter's folder, fetched if need be; None when the name is not known."""
        ...
