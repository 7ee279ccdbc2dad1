"""Model sources: where a model's name becomes a folder on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class ModelSource(Protocol):
    """Knows some models by name. Made without arguments, once for each name looked up."""

    uses_network: bool
    """Sources that need no network are asked first, so that a local folder hides a remote name."""

    def find(self, name: str, *, revision: str | None) -> Path | None:
        """Return the model's folder, fetched if need be; None: this source knows no such name.

        Raises when the source knows the name and yet cannot give it. An ``UnknownNameError`` lets
        the next source be asked, as None does, and is told to the user if none knows the name.
        """
        ...


@runtime_checkable
class FindsSettings(Protocol):
    """A source that can give a model's settings without its weights, as ``octavo plan`` asks."""

    def find_settings(self, name: str, *, revision: str | None) -> Path | None:
        """As ``find``, but only config, tokenizer and the like need be in the folder."""
        ...
