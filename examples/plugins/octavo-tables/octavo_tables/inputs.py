"""Where tables stand in a prompt, and the tensors that the model's encoder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.inputs.media import expand_items
from octavo_registry.modalities import MediaItem, MediaPrompt, MediaSettings

if TYPE_CHECKING:
    from torch import Tensor

MAX_ROWS = 256
"""That are read of a table, where nobody says another number."""


def tensors_of(modality: str, item: MediaItem, settings: MediaSettings) -> Mapping[str, Tensor]:
    """A table's first numbers, and its names for ``place_tables``, which may find no value."""
    import torch

    most = settings.entry(modality, "max_rows", MAX_ROWS)
    names = ", ".join(item.value.names).encode()
    return {
        "cells": torch.from_numpy(item.value.cells[:most].copy()),
        "names": torch.tensor(list(names), dtype=torch.uint8),
    }


def place_tables(prompt: MediaPrompt, settings: MediaSettings) -> MediaPrompt:
    """The token that stands for a table becomes the names as text, and a place for each row."""
    token: int = settings.config["table_token_id"]
    contents = []
    for item in prompt.media:
        names = bytes(item.tensors["names"].tolist()).decode()
        contents.append([*settings.text_ids(names), *[token] * len(item.tensors["cells"])])
    return expand_items(prompt, {"table": token}, contents)
