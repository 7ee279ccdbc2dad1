"""Defaults from a model's own configuration files."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.inputs import default_sampling_params, eos_token_ids
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


@pytest.mark.parametrize(
    ("config", "generation_config", "tokenizer_eos", "expected"),
    [
        ({"eos_token_id": 2}, {}, None, (2,)),
        ({"eos_token_id": 2}, {"eos_token_id": [7, 8]}, None, (7, 8)),
        ({"eos_token_id": [2, 3]}, {"eos_token_id": None}, 9, (2, 3, 9)),
        ({"eos_token_id": 2}, {}, 2, (2,)),
        ({}, {}, None, ()),
    ],
)
def test_end_of_sequence_ids_come_from_all_places(
    config: dict[str, Any],
    generation_config: dict[str, Any],
    tokenizer_eos: int | None,
    expected: tuple[int, ...],
) -> None:
    assert eos_token_ids(config, generation_config, tokenizer_eos) == expected


def test_an_end_of_sequence_id_that_is_no_integer_is_refused() -> None:
    with pytest.raises(ModelError, match=r"config\.json: eos_token_id='</s>'"):
        eos_token_ids({"eos_token_id": "</s>"}, {})
