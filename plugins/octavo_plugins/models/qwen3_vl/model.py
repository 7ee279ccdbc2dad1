"""Qwen3-VL: Qwen2-VL around a Qwen3, to whose first layers the encoder's blocks speak too.

Axis suffixes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from octavo.layers.moe import StackedTensors
from octavo_plugins.models.qwen2_vl.model import Qwen2VL
from octavo_plugins.models.qwen3 import model as qwen3
from octavo_plugins.models.qwen3_moe import model as qwen3_moe
from octavo_plugins.models.qwen3_vl.vision import DeepEncoder
from octavo_registry.model import ModelSpec
from octavo_registry.step import Step


class Qwen3VL(Qwen2VL):
    """Qwen3VLForConditionalGeneration."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: Callable[[ModelSpec, int], nn.Module] = qwen3.decoder_layer,
        **text_entries: Any,
    ) -> None:
        """``text_entries`` are what the architecture has beyond its config.json."""
        text = {"head_dim": 128, **spec.config["text_config"], **text_entries}
        super().__init__(
            replace(spec, config={**spec.config, "text_config": text}),
            encoder=DeepEncoder,
            layer=layer,
            interleaved=True,
        )
        self._num_deep = len(spec.config["vision_config"]["deepstack_visual_indexes"])
        self.media_row_size = (1 + self._num_deep) * text["hidden_size"]

    def forward(self, x_TD: Tensor, step: Step) -> Tensor:
        """Behind each of the first layers, media's tokens get a part of their rows."""
        angles = self.model.rotary(step.positions_AT)
        media, hidden = step.media, x_TD.shape[1]
        for index, layer in enumerate(self.model.layers.values()):
            x_TD = layer(x_TD, angles, step)
            if media is not None and index < self._num_deep:
                first = (1 + index) * hidden
                x_TD.index_add_(0, media.tokens_M, media.rows_MW[:, first : first + hidden])
        out_TD: Tensor = self.model.norm(x_TD)
        return out_TD


class Qwen3VLMoe(Qwen3VL):
    """Qwen3VLMoeForConditionalGeneration: the chosen experts' weights always sum to one."""

    def __init__(self, spec: ModelSpec) -> None:
        layer = partial(qwen3_moe.decoder_layer, checkpoint=StackedTensors())
        super().__init__(spec, layer, norm_topk_prob=True)
        self._hidden = spec.config["text_config"]["hidden_size"]

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Experts stand with inputs first in published checkpoints, and last in newer files."""
        return super().load(self._outputs_first(tensors))

    def _outputs_first(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        hidden_axes = {"gate_up_proj": 2, "down_proj": 1}
        for name, tensor in tensors:
            experts, _, part = name.rpartition(".")
            if experts.endswith(".experts") and tensor.shape[hidden_axes[part]] != self._hidden:
                tensor = tensor.mT
            yield name, tensor
