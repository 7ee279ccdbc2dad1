"""Qwen2.5-VL: Qwen2-VL around another encoder."""

from __future__ import annotations

from octavo_plugins.models.qwen2_5_vl.vision import WindowedEncoder
from octavo_plugins.models.qwen2_vl.model import Qwen2VL
from octavo_registry.model import ModelSpec


class Qwen25VL(Qwen2VL):
    """Qwen2_5_VLForConditionalGeneration."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec, encoder=WindowedEncoder)
