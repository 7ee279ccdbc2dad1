"""What a model's generation_config.json says about sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError, ModelError, ParameterError
from octavo.params import SamplingParams
from octavo_registry.naming import close_or_known

_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(
    generation_config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> SamplingParams:
    """Parameters for callers who give none; ``overrides`` replace entries of the model's.

    As in vLLM, ``do_sample`` is not read: a temperature of 0 alone means the likeliest token.
    """
    given = {
        ours: generation_config[theirs]
        for theirs, ours in _FIELDS.items()
        if generation_config.get(theirs) is not None
    }
    try:
        params = SamplingParams(**given)
    except ParameterError as error:
        raise ModelError(
            f'generation_config.json: {error}; correct it or give generation_config="none"'
        ) from error
    known = {**_FIELDS, **{ours: ours for ours in _FIELDS.values()}}
    for name in overrides or {}:
        if name not in known:
            raise ConfigError(f"override_generation_config.{name}: {close_or_known(name, known)}")
    try:
        return replace(params, **{known[name]: value for name, value in (overrides or {}).items()})
    except ParameterError as error:
        raise ConfigError(f"override_generation_config: {error}") from error
