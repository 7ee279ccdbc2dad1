"""Host arrays to the device without waiting for it."""

from __future__ import annotations

from typing import Any

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
