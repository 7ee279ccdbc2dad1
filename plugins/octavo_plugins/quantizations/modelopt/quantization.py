"""``quant_method`` "modelopt": float8 with a scale a tensor, and static ones of activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from octavo_plugins.quantizations.scaled import per_part
from octavo_plugins.quantizations.settings import OneForm, Settings


class ModelOpt(OneForm):
    """All linears and experts but those that the lists name; routers stay plain."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "modelopt", "modelopt")
        settings.take("quant_algo", None, "FP8")
        settings.take("kv_cache_quant_algo", None, None)
        settings.take("kv_cache_scheme", None, None)
        self._plain = settings.names("exclude_modules", "ignore")
        settings.skip("config_groups", "producer")
        settings.finish()
        self._form = per_part(torch.float8_e4m3fn, static=True)
