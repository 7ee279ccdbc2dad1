"""An adapter as it travels to an engine: all matrices in one run of bytes, ready for the device.

Axis suffixes: R the adapter's rank at a linear, I its inputs, O its outputs.
"""

from __future__ import annotations

import torch

from octavo.adapters.check import is_finite
from octavo.errors import AdapterError
from octavo.messages import AdapterHead, PackedAdapter
from octavo.steps.matrices import _views
from octavo_registry.adapters import Adapter


def pack(adapter: Adapter, dtype: str) -> PackedAdapter:
    """Bring matrices into the model's dtype and the device's layout; scaling is multiplied in."""
    to_dtype: torch.dtype = getattr(torch, dtype)
    shapes = {
        name: (len(down_RI), down_RI.shape[1], len(adapter.up[name]))
        for name, down_RI in adapter.down.items()
    }
    head = AdapterHead(
        content_hash=adapter.content_hash, rank=adapter.rank, dtype=dtype, shapes=shapes
    )
    total = sum(rank * (inputs + outputs) for rank, inputs, outputs in shapes.values())
    data = torch.empty(total, dtype=to_dtype)
    for name, down_RI, up_RO in _views(head, data):
        down_RI.copy_(adapter.down[name])
        up_RO.copy_(adapter.up[name].mT.float() * adapter.scaling[name])
        if not (is_finite(down_RI) and is_finite(up_RO)):
            raise AdapterError(
                f"the adapter's matrices of {name}, with a scaling of {adapter.scaling[name]:g}, "
                f"have numbers that {dtype} does not hold; run the model in bfloat16 or float32"
            )
    return PackedAdapter(head, data.view(torch.uint8).numpy().data)
