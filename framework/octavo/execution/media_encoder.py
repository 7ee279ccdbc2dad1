"""Media on the device: items become rows of one buffer, from which steps take what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo.errors import PluginError
from octavo.messages import TensorData
from octavo.steps.loads import EncodeItem
from octavo.steps.uploads import upload
from octavo_registry.attention import StoresRows
from octavo_registry.modalities import ROWS
from octavo_registry.model import AttendsAcross, EncodesMedia
from octavo_registry.step import LayerCache, MediaRows


class MediaEncoder:
    """The buffer's books are kept by ``octavo.scheduling.media``."""

    def __init__(
        self, model: EncodesMedia, num_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._model = model
        self._buffer_NW = torch.empty(num_rows, model.media_row_size, dtype=dtype, device=device)

    def encode(self, items: list[EncodeItem]) -> None:
        """Make the rows of all items at once."""
        if not items:
            return
        device = self._buffer_NW.device
        pinned = device.type == "cuda"  # read there at once: another pass over pixels takes time
        tensors = [
            {
                name: read_tensor(data, pinned=pinned).to(device, non_blocking=True)
                for name, data in each.item.tensors.items()
            }
            for each in items
        ]
        waiting = [each for each in tensors if ROWS not in each]
        # cuDNN's convolutions would be in TF32 where all else is in float32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            encoded = iter(self._model.encode(waiting) if waiting else ())
        rows = [each[ROWS] if ROWS in each else next(encoded) for each in tensors]
        for each, rows_MW in zip(items, rows, strict=True):
            expected = (each.item.num_rows, self._buffer_NW.shape[1])
            if tuple(rows_MW.shape) != expected:
                raise PluginError(
                    f"an item is to have {each.item.num_rows} rows, and its encoder gave "
                    f"{list(rows_MW.shape)} instead of {list(expected)}"
                )
            places = upload(each.rows.astype(np.int64), device)
            self._buffer_NW.index_copy_(0, places, rows_MW.to(self._buffer_NW.dtype))

    def fill(
        self,
        places: Tensor,
        slots: Tensor,
        groups: Sequence[int],
        layers: Mapping[str, LayerCache],
    ) -> None:
        """Store keys and values of rows where cross attention reads them.

        ``slots`` are those of each of these cache groups, one group behind the other.
        """
        if not len(places):
            return
        rows_MW = self._buffer_NW.index_select(0, places)
        slots_of = dict(zip(groups, slots.view(-1, len(places)).long(), strict=True))
        assert isinstance(self._model, AttendsAcross)
        for name, k_MKD, v_MKD in self._model.cross_rows(rows_MW):
            cache = layers[name]
            assert isinstance(cache.backend, StoresRows)  # or it would not have been chosen
            cache.backend.store(k_MKD, v_MKD, cache.view, slots_of[cache.group])

    def rows(self, tokens: Tensor, places: Tensor) -> MediaRows | None:
        """Rows that replace a step's tokens; None where there are none."""
        if not len(tokens):
            return None
        rows_MW = self._buffer_NW.index_select(0, places)
        return MediaRows(tokens_M=tokens.long(), rows_MW=rows_MW)


def read_tensor(data: TensorData, *, pinned: bool = False) -> Tensor:
    """The tensor that was sent, in memory of its own, which is ``pinned`` for a copy to a GPU."""
    dtype: torch.dtype = getattr(torch, data.dtype)
    octets = torch.empty(len(data.data), dtype=torch.uint8, pin_memory=pinned)
    octets.numpy()[:] = np.frombuffer(data.data, np.uint8)
    return octets.view(dtype).view(data.shape)
