"""``hf_overrides``: entries that replace those of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def apply_overrides(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with entries replaced; those of a nested config one by one.

    Nested configs are named so (``text_config``); other objects are replaced whole, as the keys of
    a ``rope_scaling`` belong together.
    """
    result = {**settings, **overrides}
    for key, value in overrides.items():
        old = settings.get(key)
        if key.endswith("_config") and isinstance(old, dict) and isinstance(value, dict):
            result[key] = apply_overrides(old, value)
    rope = settings.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in overrides:
        result["rope_parameters"] = _override_rope(rope, overrides)
    if "torch_dtype" in overrides and "dtype" not in overrides:
        result.pop("dtype", None)
    return result


def _override_rope(rope: dict[str, Any], overrides: Mapping[str, Any]) -> Any:
    """Older names in an override reach the newer entry, which would hide them otherwise."""
    result = dict(rope)
    if "rope_scaling" in overrides:
        scaling = overrides["rope_scaling"] or {}
        if not isinstance(scaling, dict):
            return scaling  # refused by name where it is read
        result = {key: rope[key] for key in ("rope_theta",) if key in rope} | scaling
    if "rope_theta" in overrides:
        result["rope_theta"] = overrides["rope_theta"]
    return result
