"""How many tokens a model can take, from the many names that config.json has for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from octavo.errors import ConfigError, ModelError

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "max_target_positions",
    "seq_length",
    "seq_len",
)

# Their max_position_embeddings is the scaled length already; all other types multiply it. A cache
# cannot follow "dynamic" beyond it.
ROPE_TYPES_INCLUDED = ("default", "dynamic", "llama3", "longrope", "su")
FAMILIES_INCLUDED = ("gemma3",)
"""Beginnings of model_type where the same holds for every type of rope."""
# Their positions begin behind that of the padding, and max_position_embeddings counts all.
FAMILIES_BEHIND_PADDING = ("roberta", "xlm-roberta")
PAD_TOKEN_ID = 1
"""That of these families, where config.json has none."""


def resolve_max_model_len(
    requested: int | Literal["auto"] | None,
    path: Path,
    text: Mapping[str, Any],
    *,
    most: int | None = None,
) -> int:
    """Return the requested length if the model can take it, else the model's own limit.

    ``text`` is the config of the language model; ``most`` what other files allow.
    """
    limit = _own_limit(path, text)
    if most is not None:
        limit = most if limit is None else min(limit, most)
    chosen = None if requested == "auto" else requested
    if limit is None:
        if chosen is not None:
            return chosen
        raise ModelError(
            f"{path / 'config.json'} gives no context length (looked for {', '.join(LENGTH_KEYS)});"
            " pass max_model_len"
        )
    if chosen is None:
        return limit
    if chosen > limit:
        raise ConfigError(
            f"max_model_len={chosen} is above the {limit} tokens that {path / 'config.json'} "
            "allows; lower it, or raise max_position_embeddings or rope_scaling by hf_overrides"
        )
    return chosen


def _own_limit(path: Path, text: Mapping[str, Any]) -> int | None:
    if "model_max_length" in text:  # Command R: its max_position_embeddings is a lower default
        return int(_positive(path, "model_max_length", text["model_max_length"]))
    given = [_positive(path, key, text[key]) for key in LENGTH_KEYS if text.get(key) is not None]
    if not given:
        return None
    limit = min(given)
    if text.get("model_type") in FAMILIES_BEHIND_PADDING:
        pad = text.get("pad_token_id")
        return int(limit) - 1 - int(PAD_TOKEN_ID if pad is None else pad)
    if str(text.get("model_type", "")).startswith(FAMILIES_INCLUDED):
        return int(limit)
    for rope in _rope_settings(path, text):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in ROPE_TYPES_INCLUDED:
            continue
        if kind == "yarn" and "original_max_position_embeddings" in rope:
            original = rope["original_max_position_embeddings"]
            limit = _positive(path, "original_max_position_embeddings", original)
        limit *= _positive(path, "rope scaling factor", rope.get("factor", 1.0))
    return int(limit)


def _rope_settings(path: Path, text: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rope settings under either of their names; one entry per kind of layer where nested."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"{path / 'config.json'}: rope settings {rope!r} are not an object")
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def _positive(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**40:
        raise ModelError(f"{path / 'config.json'}: {key}={value!r} must be a positive number")
    return value
