"""``quant_method`` "fp8": as DeepSeek and Qwen publish it, in blocks, or with a scale a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from octavo.errors import ConfigError
from octavo.layers.formats import WeightFormat
from octavo_plugins.quantizations.scaled import per_block, per_part
from octavo_plugins.quantizations.settings import OneForm, Settings


class Fp8(OneForm):
    """All linears and experts but those that the lists name; routers stay plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "fp8", "fp8")
        settings.take("fmt", "e4m3", "e4m3")
        settings.take("scale_fmt", None, None, "float", "ue8m0")
        static = settings.take("activation_scheme", "dynamic", "dynamic", "static") == "static"
        block = settings.take("weight_block_size", None)
        settings.take("kv_cache_scheme", None, None)
        self._plain = settings.names("ignored_layers", "modules_to_not_convert")
        settings.skip("dequantize")
        settings.finish()
        self._form: WeightFormat = per_part(torch.float8_e4m3fn, static=static)
        if block is not None:
            if not isinstance(block, list) or len(block) != 2 or static:
                raise ConfigError(
                    f"weight_block_size={block!r} in quantization_config must be two sizes, with "
                    "an activation_scheme that is dynamic"
                )
            self._form = per_block("weight_scale_inv", *block)
