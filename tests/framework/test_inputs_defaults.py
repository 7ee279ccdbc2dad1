"""Default sampling parameters from a model's own files."""

from __future__ import annotations

import pytest

from octavo.errors import ModelError
from octavo.inputs import default_sampling_params
from octavo.params import SamplingParams


def test_generation_config_gives_the_fields_that_vllm_reads() -> None:
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
        "max_new_tokens": 2048,
        "eos_token_id": 2,
        "transformers_version": "5.0",
    }
    assert default_sampling_params(config) == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.05, max_tokens=2048
    )


def test_fields_that_are_absent_or_null_keep_our_defaults() -> None:
    assert default_sampling_params({"temperature": None}) == SamplingParams()


def test_a_bad_value_names_the_file() -> None:
    with pytest.raises(ModelError, match=r"generation_config.json: top_p=7.*generation_config="):
        default_sampling_params({"top_p": 7})
