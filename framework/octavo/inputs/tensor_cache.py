"""What processors made of the items that came last, as tensors and on the way to the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING

from octavo.messages import TensorData

if TYPE_CHECKING:
    from torch import Tensor

Tensors = tuple[Mapping[str, "Tensor"], dict[str, TensorData]]
"""An item's tensors, and what they are on the way to the engine."""


class TensorCache:
    """Keeps what was used last, by content; from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._kept: OrderedDict[str, Tensors] = OrderedDict()
        self._num_bytes = 0

    def get(self, content_hash: str) -> Tensors | None:
        """Return what is kept under it; it then came last."""
        with self._lock:
            if content_hash in self._kept:
                self._kept.move_to_end(content_hash)
            return self._kept.get(content_hash)

    def put(self, content_hash: str, made: Tensors) -> None:
        """Keep it, unless something is kept there, and drop what is too much."""
        with self._lock:
            if content_hash in self._kept:
                return
            self._kept[content_hash] = made
            self._num_bytes += _size(made)
            while self._num_bytes > self._max_bytes and self._kept:
                self._num_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(made: Tensors) -> int:
    return 2 * sum(len(data.data) for data in made[1].values())


def write_tensor(tensor: Tensor) -> TensorData:
    """As bytes, for another process."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return TensorData(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)
