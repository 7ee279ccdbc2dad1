"""What a model's generation_config.json says about sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError, ParameterError
from octavo.params import SamplingParams

_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """Parameters for callers who give none.

    As in vLLM, ``do_sample`` is not read: a temperature of 0 alone means the likeliest token.
    """
    given = {
        ours: generation_config[theirs]
        for theirs, ours in _FIELDS.items()
        if generation_config.get(theirs) is not None
    }
    try:
        return SamplingParams(**given)
    except ParameterError as error:
        raise ModelError(
            f'generation_config.json: {error}; correct it or give generation_config="none"'
        ) from error
