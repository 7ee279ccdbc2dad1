"""LoRA adapters: formats that read them, resolvers that find them by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter's weights on the host, by full names of the model's linears.

    The three mappings have the same names. What a linear adds to its outputs is
    scaling * (x @ down.T) @ up.T; the input embedding is a linear whose x is one-hot.
    """

    rank: int
    """The largest of its linears' ranks; those of others may be smaller."""
    scaling: Mapping[str, float]
    down: Mapping[str, Tensor]
    """A matrices [rank, in_features]."""
    up: Mapping[str, Tensor]
    """B matrices [out_features, rank]."""
    content_hash: str
    """SHA-256 of all that changes its results, in hex: the same wherever it is read."""
    base_model: str | None = None
    """What it was trained on, as its files say."""
    base_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights of that model which were saved along, of linears that the adapter changes. They are
    compared with those of the model that runs."""
    targets: Sequence[str] = ()
    """Modules that its files say it changes, each by its name or the end of it. What a model has of
    these must be changed somewhere; what it has not is left, as one list may be for many models."""


@runtime_checkable
class AdapterFormat(Protocol):
    """Reads one on-disk format. Made without arguments, when adapters are first used."""

    def read(self, folder: Path) -> Adapter | None:
        """Return the adapter; None when the folder is of another format.

        Raises an OctavoError naming file and tensor when the folder is of this format and damaged,
        or has what cannot be computed. Tensors are copies in memory: the files may change later.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolders:
    """Where adapters may lie."""

    allowed: tuple[Path, ...] | None = ()
    """Paths are taken below these alone; None: anywhere, for who names them may read all files."""
    watched: tuple[Path, ...] = ()
    """Each folder in one of these is an adapter of its own name, as soon as it is there."""


@runtime_checkable
class AdapterResolver(Protocol):
    """Finds adapters by name at run time. Made without arguments, when they are first used."""

    def find(self, name: str, folders: AdapterFolders) -> Path | None:
        """Return the adapter's folder, fetched if need be; None when the name is not known.

        A name may come from a request: what is outside of the folders is answered as what is not
        there.
        """
        ...


@runtime_checkable
class ListsAdapters(Protocol):
    """A resolver that can tell which names it knows, as a list of models shows them."""

    def names(self, folders: AdapterFolders) -> Sequence[str]:
        """All names that ``find`` would know now."""
        ...
