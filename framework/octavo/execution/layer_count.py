"""Layers that a CPU has come to, by which a step that takes minutes is told from one that hangs."""

from __future__ import annotations

import torch
from torch import nn

LISTS_OF_LAYERS = (nn.ModuleList, nn.ModuleDict)


class LayerCount:
    """Counts the layers begun since the start, also those of encoders; on CPUs alone."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.num_begun = 0
        if device.type == "cpu":
            for module in model.modules():
                for layer in module.children() if isinstance(module, LISTS_OF_LAYERS) else ():
                    layer.register_forward_pre_hook(self._begin_layer)

    def _begin_layer(self, layer: nn.Module, args: object) -> None:
        self.num_begun += 1
