"""``quant_method`` "compressed-tensors": groups of linears, each stored in a form of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from octavo.errors import ConfigError
from octavo.layers.formats import WeightFormat
from octavo_plugins.quantizations.compressed_tensors.words import PackedWords
from octavo_plugins.quantizations.scaled import OUT, PART, Scaled
from octavo_plugins.quantizations.settings import Method, Settings, is_named, method_for
from octavo_registry import Axis, ExpertsSite, Site

FORMS: Final = (
    "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision",
)  # fmt: skip
SCALES: Final = "weight_scale"


class CompressedTensors:
    """Linears and experts that a group's targets name and ``ignore`` does not."""

    def __init__(self, config: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
        settings = Settings(config)
        settings.take("quant_method", "compressed-tensors", "compressed-tensors")
        form = settings.take("format", None, None, *FORMS)
        self._plain = settings.names("ignore")
        groups = settings.take("config_groups", None)
        settings.take("kv_cache_scheme", None, None)
        settings.take("quantization_status", "compressed", "compressed", "frozen")
        for key in ("sparsity_config", "transform_config"):
            settings.take(key, None, None, {}, {"format": "dense"})
        settings.skip("global_compression_ratio", "version")
        settings.finish()
        if not isinstance(groups, dict) or not groups:
            raise ConfigError(f"config_groups={groups!r} in quantization_config must name groups")
        self._groups = [
            _group(f"config_groups.{name}", group, form) for name, group in groups.items()
        ]

    def _form_of(self, name: str) -> WeightFormat | None:
        if is_named(name, self._plain):
            return None
        for targets, form in self._groups:
            if "Linear" in targets or is_named(name, targets):
                return form
        return None

    def method_of(self, site: Site | ExpertsSite) -> Method:
        """See ``Quantization``; the embedding stays plain."""
        return None if site.kind == "embedding" else method_for(site, self._form_of)


def _group(where: str, group: Any, form: str | None) -> tuple[tuple[str, ...], WeightFormat]:
    """The targets of a group, and how its weights are stored."""
    if not isinstance(group, dict):
        raise ConfigError(f"{where} in quantization_config must be an object, not {group!r}")
    settings = Settings(group, where)
    targets = settings.names("targets")
    own = settings.take("format", None, None, *FORMS) or form
    settings.take("output_activations", None, None)
    activations = settings.take("input_activations", None) or {}
    weights = Settings(settings.take("weights", None) or {"num_bits": 0}, f"{where}.weights")
    settings.finish()
    static = bool(activations) and activations.get("dynamic") is False
    return targets, _form(weights, own, static=static, where=where)


def _form(weights: Settings, form: str | None, *, static: bool, where: str) -> WeightFormat:
    bits, kind = weights.take("num_bits", None, 4, 8), weights.take("type", "int", "int", "float")
    strategy = weights.take("strategy", "tensor", "tensor", "channel", "group", "block")
    group_size = weights.take("group_size", None)
    block = weights.take("block_structure", None)
    symmetric = weights.take("symmetric", True, True, False)
    order = weights.take("actorder", None, None, "group", "weight", "dynamic", "static", False)
    weights.take("dynamic", False, False)
    weights.skip("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
    weights.finish()
    axes = {
        "tensor": (PART,),
        "channel": (OUT, Axis()),
        "group": (OUT, Axis("in", group_size or 1)),
        "block": (Axis("out", (block or [1])[0]), Axis("in", (block or [1])[-1])),
    }[strategy]
    if strategy == "group" and (type(group_size) is not int or group_size < 1):
        raise ConfigError(f"group_size={group_size!r} in {where}.weights must be a number")
    if strategy == "block" and (not isinstance(block, list) or len(block) != 2):
        raise ConfigError(f"block_structure={block!r} in {where}.weights must be two numbers")
    if form == "pack-quantized":
        if kind != "int" or strategy not in ("channel", "group") or static:
            raise ConfigError(f"{where}: words of {kind} by {strategy} are not known")
        return PackedWords(
            bits,
            group_size if strategy == "group" else -1,
            symmetric,
            order in ("group", "dynamic"),
        )
    if bits != 8 or not symmetric or order in ("group", "dynamic"):
        raise ConfigError(
            f"{where}: weights of {bits} bits that are "
            f"{'symmetric' if symmetric else 'not symmetric'}, as {form} stores them, are not known"
        )
    dtype = torch.float8_e4m3fn if kind == "float" else torch.int8
    return Scaled(dtype, SCALES, axes, static=static)
