"""Small host arrays to the device without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy to the device; the array must not change afterwards when the device is a CPU."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        # Only a copy from pinned memory leaves the host free while earlier kernels run.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def upload_row_sets(sets: list[NDArray[np.bool_]], device: torch.device) -> list[Tensor]:
    """The indices of the rows in each set, in one copy."""
    indices = [np.flatnonzero(rows_R) for rows_R in sets]
    flat = upload(np.concatenate(indices), device)
    return list(torch.split(flat, [len(rows) for rows in indices]))
