"""Weights of the base model that came along with an adapter, as PEFT saves those of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import AdapterError
from octavo.weights.checkpoint import Checkpoint
from octavo.wording import listed
from octavo_registry.adapters import Adapter


def check_base_weights(adapter: Adapter, checkpoint: Checkpoint) -> None:
    """Raise an ``AdapterError`` unless the model has each of them too, to the bit.

    A saved one may have been rounded to another dtype. Names are not compared: a tied head is
    stored as the embedding alone.
    """
    missing = dict(adapter.base_weights)
    for _, _, stored in checkpoint.tensors() if missing else ():
        missing = {name: saved for name, saved in missing.items() if not _is_of(saved, stored)}
    if missing:
        raise AdapterError(
            "weights saved along with the adapter are not those of this model, which was resized "
            f"or trained there: {listed(sorted(missing))}"
        )


def _is_of(saved: Tensor, stored: Tensor) -> bool:
    return saved.shape == stored.shape and torch.equal(stored.to(saved.dtype), saved)
